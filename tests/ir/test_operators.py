"""Tasks may only call operators and functions of sizes."""

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

from nimble_fx.codegen.emit import callee_text
from nimble_fx.codegen.load import load
from nimble_fx.ir.operators import (
    function_by_name,
    is_importable,
    operators_by_name,
    runtime_function,
    serialized_name,
)
from tests.support.saved import programs_of_models

FUNCTIONS: tuple[Callable[..., Any], ...] = (
    *(operator.mul, operator.floordiv, operator.getitem, operator.and_, operator.le),
    *(round, math.ceil, math.trunc, torch.sym_max, torch.sym_float, torch.sym_not, torch.sym_sqrt),
)
NO_TARGETS = (
    *("operator.attrgetter", "operator.methodcaller", "operator.call", "operator.itemgetter"),
    *("operator.setitem", "operator.delitem", "operator.iadd", "operator.__call__"),
    *("torch.from_file", "torch.load", "torch.import_ir_module", "torch.compile", "torch.fork"),
    *("torch.sym_size", "torch._C", "torch.ops", "math.pi", "math.__loader__", "os.system"),
    *("builtins.eval", "", ".", "::", "eval", "aten::", "::relu", "aten::relu.default.x"),
    *("aten::__class__", "torch::ops", "aten::append.t", "prim::Constant", "aten.relu.default"),
)


def target_in_file(name: str) -> Callable[..., Any] | None:
    return operators_by_name([name]).get(name) or function_by_name(name)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_of_sizes_are_found_by_name(function: Callable[..., Any]) -> None:
    assert is_importable(function)
    name = serialized_name(function)
    assert name is not None
    assert target_in_file(name) is function


@pytest.mark.parametrize("name", NO_TARGETS)
def test_nothing_else_can_be_had_by_a_name(name: str) -> None:
    assert target_in_file(name) is None


@pytest.mark.parametrize(
    "target", [print, operator.attrgetter("x"), torch.load, 7, None, torch.Tag]
)
def test_nothing_else_has_a_name(target: Any) -> None:
    assert not is_importable(target)
    assert serialized_name(target) is None


@pytest.mark.slow
def test_whatever_the_models_call_is_found_by_its_name() -> None:
    targets = {task.target for program in programs_of_models() for task in program.graph.tasks}
    assert any(not isinstance(target, torch._ops.OpOverload) for target in targets)
    for target in targets:
        name = serialized_name(target)
        assert name is not None
        assert target_in_file(name) is target


@pytest.mark.slow
def test_what_is_called_is_what_a_loaded_module_calls() -> None:
    program = programs_of_models()[0]
    loaded = load(program.source, "loaded.py").call.__globals__
    targets = {task.target for program in programs_of_models() for task in program.graph.tasks}
    for target in targets:
        module = loaded | {"operator": operator}
        assert runtime_function(target) is eval(callee_text(target), module)
