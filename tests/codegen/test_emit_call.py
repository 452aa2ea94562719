"""An emitted call passes what its paths say, and reads what several share once."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nimble_fx.codegen.emit_call import Path, emit_call

ROOTS = ("model", "args")
PARTS = [".a", "._modules", "['a']", "['_modules']", "['a b']", "[0]", '["it\'s"]']


class Reading:
    """A value that knows how it was read; its attributes and items are such values too."""

    def __init__(self, path: Path, counts: Counter[Path]) -> None:
        self.path, self.counts = path, counts

    def __getattr__(self, name: str) -> "Reading":
        return self._read(f".{name}")

    def __getitem__(self, key: object) -> "Reading":
        return self._read(f"[{key!r}]")

    def _read(self, part: str) -> "Reading":
        self.counts[*self.path, part] += 1
        return Reading((*self.path, part), self.counts)


PATHS = st.lists(st.tuples(st.sampled_from(ROOTS), st.lists(st.sampled_from(PARTS)).map(tuple)))


def called(lists: Sequence[Sequence[Path]]) -> tuple[list[list[Path]], Any, Counter[Path]]:
    """What an emitted call passes and returns, and how often it reads what."""
    passed, counts = list[list[Path]](), Counter[Path]()

    def program(*args: list[Reading]) -> tuple[str, ...]:
        passed.extend([[each.path for each in items] for items in args])
        return ("y", "z")

    scope: dict[str, Any] = {"program": program, "model": Reading(("model",), counts)}
    exec(emit_call(lists, "{'z': outputs[1]}"), scope)
    returned = scope["call"](Reading(("args",), counts), {})
    return passed, returned, counts


@given(st.lists(PATHS, min_size=1, max_size=2))
def test_it_passes_each_list_and_returns_what_it_should(
    drawn: list[list[tuple[str, tuple[str, ...]]]],
) -> None:
    lists = [[(root, *parts) for root, parts in each] for each in drawn]
    passed, returned, _ = called(lists)
    assert passed == lists
    assert returned == {"z": "z"}


def test_a_key_may_have_characters_that_a_name_may_not() -> None:
    paths = [("model", "['m²']", part) for part in (".a", "[0]")]
    assert called([paths])[0] == [paths]


def test_what_several_begin_with_is_read_once() -> None:
    layers = [("model", "._modules", f"['{i}']", "._parameters") for i in range(3)]
    paths = [(*layer, key) for layer in layers for key in ("['weight']", "['bias']")]
    _, _, counts = called([[("args", "[0]")], paths])
    assert set(counts.values()) == {1}
    assert len(counts) == 1 + 1 + 3 * 4
