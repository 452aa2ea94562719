"""Errors that Dynamo hands to the user as they are, by the names that users know."""

from typing import Any

from nimble_fx.errors import OptionError, PassError, UnsupportedError
from nimble_fx.torch_internals.dynamo import ShortenTraceback


class DynamoUnsupportedError(ShortenTraceback, UnsupportedError):
    """An UnsupportedError that Dynamo hands to the user as it is, by the name that users know."""

    __module__ = UnsupportedError.__module__
    __qualname__ = UnsupportedError.__qualname__

    def __init__(self, error: UnsupportedError) -> None:
        ShortenTraceback.__init__(self, str(error), first_useful_frame=None)
        self.node, self.source = error.node, error.source


DynamoUnsupportedError.__name__ = UnsupportedError.__name__


class DynamoOptionError(ShortenTraceback, OptionError):
    """An OptionError that Dynamo hands to the user as it is, under the name that users know."""

    __module__ = OptionError.__module__
    __qualname__ = OptionError.__qualname__

    def __reduce__(self) -> tuple[Any, ...]:
        return OptionError, self.args


DynamoOptionError.__name__ = OptionError.__name__


class DynamoPassError(ShortenTraceback, PassError):
    """A PassError that Dynamo hands to the user as it is, under the name that users know."""

    __module__ = PassError.__module__
    __qualname__ = PassError.__qualname__

    def __init__(self, error: PassError) -> None:
        ShortenTraceback.__init__(self, str(error), first_useful_frame=None)


DynamoPassError.__name__ = PassError.__name__
