"""Whatever PyTorch leaves to eager of a model that is compiled ahead is reported, with the line."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import nimble_fx
from nimble_fx.errors import FallbackError, NimbleWarning

Program = Callable[[Tensor], Tensor]


def broken(x: Tensor) -> Tensor:
    torch._dynamo.graph_break()
    return x + 1


def plus_one(x: Tensor) -> Tensor:
    return x + 1


disabled: Any = torch.compiler.disable(plus_one)


def between_graphs(x: Tensor) -> Tensor:
    return broken(x * 2)


def in_a_loop(x: Tensor) -> Tensor:
    for _ in range(2):
        x = broken(x * 2)
    return x


def before_a_graph(x: Tensor) -> Tensor:
    print(end="")  # noqa: T201
    return x * 2


def at_the_end(x: Tensor) -> Tensor:
    result: Tensor = disabled(x * 2)
    return result


def branching(x: Tensor) -> Tensor:
    y = x * 2
    return y + 1 if y.sum() > 0 else y - 1


def to_number(x: Tensor) -> Tensor:
    return x * 2 + int((x * 2).sum())


def unbroken(x: Tensor) -> Tensor:
    return between_lines(x) + 1


def between_lines(x: Tensor) -> Tensor:
    return x * 2


WHY: dict[Program, str] = {
    between_graphs: r"graph_break\(\)",
    in_a_loop: r"graph_break\(\)",
    before_a_graph: "`print`",
    at_the_end: r"torch\.compiler\.disable",
    branching: "Data-dependent branching",
    to_number: "capture_scalar_outputs",
}
LINES: dict[Program, tuple[Program, int]] = {
    between_graphs: (broken, 1),
    at_the_end: (at_the_end, 1),
    branching: (branching, 2),
    to_number: (to_number, 1),
}


@pytest.mark.parametrize("program", WHY)
def test_a_graph_break_is_a_fallback_that_says_why(program: Program) -> None:
    x = torch.ones(3)
    with pytest.raises(FallbackError, match=f"{program.__name__} would run partly in eager"):
        nimble_fx.compile(program, x, on_fallback="error")
    with pytest.warns(NimbleWarning, match=WHY[program]):
        compiled = nimble_fx.compile(program, x)
    assert torch.equal(compiled(x), program(x))


@pytest.mark.parametrize("program", LINES)
def test_it_names_the_line_at_which_a_graph_ends(program: Program) -> None:
    function, offset = LINES[program]
    lines, first = inspect.getsourcelines(function)
    with pytest.raises(FallbackError) as raised:
        nimble_fx.compile(program, torch.ones(3), on_fallback="error")
    source: Any = raised.value.source
    found = (source.file, source.line, source.code)
    assert found == (__file__, first + offset, lines[offset].strip())
    assert f"{source}, `{source.code}`" in str(raised.value)


def test_other_reasons_are_counted() -> None:
    def program(x: Tensor) -> Tensor:
        return branching(between_graphs(x))

    with pytest.warns(NimbleWarning, match=r"and for 1 other reason,.*TORCH_LOGS=graph_breaks"):
        nimble_fx.compile(program, torch.ones(3))


def goes_on(x: Tensor) -> Tensor:
    """Dynamo counts an error, goes on, and makes one graph."""
    return x * getattr((1).__class__, "no_such", 2)


@pytest.mark.parametrize("program", [unbroken, goes_on])
def test_a_model_without_graph_breaks_is_no_fallback(program: Program) -> None:
    torch.compile(program, backend="eager", fullgraph=True)(torch.ones(3))
    nimble_fx.compile(program, torch.ones(3), on_fallback="error")
    assert nimble_fx.fallbacks() == ()


def test_a_model_that_computes_nothing_may_be_told_so() -> None:
    with pytest.warns(NimbleWarning, match="in eager: PyTorch found no graph.*computes nothing"):
        nimble_fx.compile(torch.nn.Identity(), torch.ones(3))


def test_code_without_a_source_is_named_by_its_line() -> None:
    scope: dict[str, Any] = {}
    text = "def program(x):\n    y = x * 2\n    print(end='')\n    return y + 1\n"
    exec(compile(text, "<stdin>", "exec"), scope)
    with pytest.warns(NimbleWarning, match=r"breaks its graph at <stdin>:3 \("):
        nimble_fx.compile(scope["program"], torch.ones(3))
