"""Reads the kernels that a module written by Inductor declares: parameters and text.

cpp_fused_relu_0 = async_compile.cpp_pybinding(['const float*', 'float*'], r'''...''')
triton_poi_fused_relu_0 = async_compile.triton('triton_poi_fused_relu_0', '''...''', ...)
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from nimble_fx.errors import UnsupportedError
from nimble_fx.ir.locked_ast import syntax_tree


@dataclass(frozen=True)
class Declaration:
    """A kernel.

    Attributes:
        source: its text, in C++ or Triton's Python.
        writes: for each parameter, whether the kernel writes the tensor; None for a number.
    """

    source: str
    writes: tuple[bool | None, ...]


def read_declarations(text: str) -> dict[str, Declaration]:
    """The kernels of a module by name.

    Raises:
        UnsupportedError: a declaration has an unknown form.
    """
    found = {}
    for statement in syntax_tree(text).body:
        match statement:
            case ast.Assign([ast.Name(name)], ast.Call(function, args)):
                match ast.unparse(function), args:
                    case "async_compile.cpp_pybinding", [types, ast.Constant(str() as source), *_]:
                        found[name] = Declaration(source, tuple(_writes_of_cpp(types)))
                    case "async_compile.triton", [_, ast.Constant(str() as source), *_]:
                        found[name] = Declaration(source, tuple(_writes_of_triton(source)))
                    case maker, _ if maker.startswith("async_compile."):
                        raise UnsupportedError(f"Inductor makes {name} by {maker}, unknown here")
    return found


def _writes_of_cpp(types: ast.expr) -> Iterator[bool | None]:
    """Which parameters are written, by their C++ types, such as "const float*"."""
    for kind in ast.literal_eval(types):
        yield not kind.startswith("const ") if kind.endswith("*") else None


def _writes_of_triton(source: str) -> Iterator[bool | None]:
    """Which parameters are written, by their names: in_ptr0, out_ptr0, in_out_ptr0, xnumel."""
    functions = [node for node in syntax_tree(source).body if isinstance(node, ast.FunctionDef)]
    if len(functions) != 1:
        raise UnsupportedError("Inductor wrote a text of several Triton functions, unknown here")
    for parameter in functions[0].args.args:
        if parameter.annotation is None:  # tl.constexpr: chosen by Triton
            name = parameter.arg
            yield not name.startswith("in_ptr") if "_ptr" in name else None
