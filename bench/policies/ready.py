"""Tasks one by one, each once all that it must come after has been taken."""

from collections.abc import Iterable

from nimble_fx.launch_order import Earlier


class Ready:
    """The tasks that may come next."""

    def __init__(self, earlier: Earlier) -> None:
        self._missing = {name: len(set(before)) for name, before in earlier.items()}
        self._later: dict[str, list[str]] = {name: [] for name in earlier}
        for name, before in earlier.items():
            for other in dict.fromkeys(before):
                self._later[other].append(name)

    def first(self) -> list[str]:
        """What comes after nothing, in program order."""
        return [name for name, missing in self._missing.items() if not missing]

    def after(self, name: str) -> Iterable[str]:
        """What is made ready by taking `name`, in program order."""
        for other in self._later[name]:
            self._missing[other] -= 1
            if not self._missing[other]:
                yield other
