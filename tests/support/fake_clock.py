"""A clock that only advances where a test says so."""


class Clock:
    """The clock."""

    now = 0.0

    def read(self) -> float:
        """The seconds since it was made."""
        return self.now


CLOCK = Clock()
