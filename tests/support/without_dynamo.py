"""Makes calls through Dynamo an error."""

from typing import Any

import pytest

import nimble_fx


class RefusedError(Exception):
    """Raised in place of a call by Dynamo."""


def only_direct(compiled: nimble_fx.Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a call by Dynamo is an error."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise RefusedError

    monkeypatch.setattr(compiled._guarded, "_run", refuse)
