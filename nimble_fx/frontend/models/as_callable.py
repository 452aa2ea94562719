"""Models of any kind as modules or functions, which Dynamo can trace."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

from nimble_fx.errors import OptionError, UnsupportedError
from nimble_fx.frontend.models.model_function import Arguments
from nimble_fx.torch_internals.names import lookup, pytree


def as_callable(model: object, arguments: Arguments) -> Callable[..., Any]:
    """The model as a module or function, which Dynamo can trace.

    Args:
        model: a module, a function, an ExportedProgram, or a ScriptModule or ScriptFunction.
        arguments: example arguments, with which TorchScript is converted.

    Raises:
        OptionError: the model cannot be called, or the arguments of TorchScript are not complete.
        UnsupportedError: PyTorch cannot convert the TorchScript.
    """
    if isinstance(model, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
        model = _exported(model, arguments)
    if isinstance(model, ExportedProgram):
        return model.module()
    if not callable(model):
        raise OptionError(
            f"an object of type {type(model).__name__} is not a model; it takes a torch.nn.Module, "
            "a function, a torch.export.ExportedProgram or a torch.jit.ScriptModule"
        )
    return model


def _exported(model: Any, arguments: Arguments) -> ExportedProgram:
    """Converts a ScriptModule or ScriptFunction to an ExportedProgram.

    It returns the tuples, lists and dicts that the model does; a named tuple is a tuple.

    Args:
        model: TorchScript.
        arguments: one set of arguments for it.

    Raises:
        OptionError: an argument is missing, even one with a default, or passed by keyword.
        UnsupportedError: PyTorch cannot convert it, or would leave out an assignment.
    """
    is_function = isinstance(model, torch.jit.ScriptFunction)
    name = model.name if is_function else model.original_name
    schema: Any = model.schema if is_function else model.forward.schema
    names = [argument.name for argument in schema.arguments]
    _check_complete(names if is_function else names[1:], name, arguments)
    _check_assignments(model.inlined_graph, name)
    converter = lookup("torch._export.converter.TS2EPConverter")  # takes long to import

    try:
        convert: Any = converter(model, arguments.args)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Manually populate")  # unused state is kept
            program: ExportedProgram = convert.convert()
    except Exception as error:  # of PyTorch's converter, which raises errors of all kinds
        raise UnsupportedError(
            f"PyTorch cannot convert the TorchScript of {name}: {error}. Pass the module "
            "or function that was scripted"
        ) from error
    signature = program.module_call_graph[0].signature
    if signature is not None:
        leaves = [object()] * signature.out_spec.num_leaves
        returned = pytree.tree_unflatten(leaves, signature.out_spec)
        declared = schema.returns[0].type
        signature.out_spec = pytree.tree_structure(_as_declared(returned, declared))
    return program


def _check_complete(names: Sequence[str], name: str, arguments: Arguments) -> None:
    """Raises OptionError unless the example has all arguments by position, for the converter."""
    if arguments.kwargs:
        raise OptionError(
            f"the TorchScript of {name} takes {', '.join(names)}: pass all by position, because "
            "PyTorch does not convert it with keywords"
        )
    missing = names[len(arguments.args) :]
    if missing:
        raise OptionError(
            f"the TorchScript of {name} takes {', '.join(names)}, and example_inputs lacks "
            f"{', '.join(missing)}: PyTorch converts it only with all its arguments, also those "
            "that have a default"
        )


def _check_assignments(graph: Any, name: str) -> None:
    """Raises UnsupportedError for an assignment to an attribute that is no tensor.

    PyTorch's converter takes its value for a constant.
    """
    for node in graph.findAllNodes("prim::SetAttr"):
        _, value = node.inputs()
        if value.type().kind() != "TensorType":
            raise UnsupportedError(
                f"the TorchScript of {name} assigns to its attribute {node.s('name')}, which is no "
                "tensor, and PyTorch would leave that out. Pass the module that was scripted"
            )


def _as_declared(value: Any, declared: Any) -> Any:
    """A value with the containers of a type of TorchScript's, for those that the converter made."""
    if declared.kind() == "OptionalType":
        return _as_declared(value, declared.getElementType())
    if isinstance(value, dict):
        return {key: _as_declared(each, declared.getValueType()) for key, each in value.items()}
    if not isinstance(value, (list, tuple)):
        return value
    if declared.kind() == "TupleType":
        return tuple(map(_as_declared, value, declared.elements()))
    return [_as_declared(each, declared.getElementType()) for each in value]
