"""Builds the graph of a module that Inductor wrote: its kernels, operators and memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, getitem
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from nimble_fx.errors import UnsupportedError
from nimble_fx.ir.types import Size
from nimble_fx.rewrites.inductor.declarations import read_declarations
from nimble_fx.rewrites.inductor.kernel_operators import kernel_operator
from nimble_fx.rewrites.inductor.kernel_signature import (
    Argument,
    NewTensor,
    Signature,
    Taken,
    ViewLayout,
)
from nimble_fx.rewrites.inductor.kernel_sizes import (
    end_of,
    evaluated,
    index_at,
    permutation,
    size_of,
    sum_of,
    value_of,
)
from nimble_fx.rewrites.inductor.opaque_operators import original_of
from nimble_fx.rewrites.inductor.same_interface import inputs_and_constants
from nimble_fx.rewrites.inductor.statements import (
    Calls,
    Expectation,
    Expression,
    Geometry,
    Item,
    KernelCall,
    Name,
    OperatorCall,
    View,
    read_calls,
)
from nimble_fx.rewrites.inductor.triton_launch import triton_launch
from nimble_fx.rewrites.kernel_registry import short_name
from nimble_fx.rewrites.new_nodes import fake_result
from nimble_fx.torch_internals.kernels.inductor import InductorModule
from nimble_fx.torch_internals.names import OpOverload
from nimble_fx.torch_internals.operators import KERNELS, schema_of
from nimble_fx.torch_internals.symbolic import (
    are_guarded_same,
    are_same_sizes,
    is_guarded_same,
    is_same_size,
)
from nimble_fx.tracing.source_lines import lines_of

_aten = torch.ops.aten


def kernel_graph(gm: GraphModule, module: InductorModule) -> Graph:
    """The graph of a module.

    Args:
        gm: the graph that Inductor compiled; the result has its inputs and constants.
        module: the module that Inductor wrote for it.

    Raises:
        UnsupportedError: the module has an unknown statement.
    """
    return _Builder(gm, module, read_calls(module.text)).build()


@dataclass(frozen=True, eq=False)
class _Unwritten:
    """Memory that is not written yet; the first kernel that takes it allocates it."""

    tensor: NewTensor


@dataclass(frozen=True)
class _Part:
    """A part of memory that is not written yet."""

    of: _Unwritten
    layout: ViewLayout


class _Builder:
    """Builds the graph, statement by statement."""

    def __init__(self, gm: GraphModule, module: InductorModule, calls: Calls) -> None:
        self._gm, self._module, self._calls = gm, module, calls
        self._declared = read_declarations(module.text)
        self._graph = Graph()
        self._values: dict[str, Any] = {}
        self._symbols: dict[str, Node] = {}
        self._written: dict[_Unwritten, Node] = {}
        self._before = {node.name: node for node in gm.graph.nodes}
        self._meta: dict[str, Any] = {}

    def build(self) -> Graph:
        """The graph of all statements."""
        inputs = inputs_and_constants(self._gm.graph)
        for name, node in zip(self._calls.inputs, inputs, strict=True):
            self._values[name] = self._input(node)
        for statement in self._calls.statements:
            self._meta = self._meta_of(statement.origin)
            value = self._evaluated(statement.value)
            if statement.name is not None:
                self._values[statement.name] = value
                if isinstance(value, Node) and isinstance(value.meta["val"], torch.SymInt):
                    self._symbols[statement.name] = value
        returned = [self._node(self._evaluated(value)) for value in self._calls.returned]
        self._graph.output(tuple(returned)).meta = dict(self._gm.graph.output_node().meta)
        for node in reversed(self._graph.find_nodes(op="call_function", target=getitem)):
            if not node.users:
                self._graph.erase_node(node)
        return self._graph

    def _input(self, node: Node) -> Node:
        """A copy of an input or a constant, with a fake tensor."""
        copied = self._graph.node_copy(node)
        if node.op == "get_attr":
            constant = attrgetter(str(node.target))(self._gm)
            copied.meta["val"] = self._module.fake_mode.from_tensor(constant, static_shapes=True)
        return copied

    def _meta_of(self, origin: str | None) -> dict[str, Any]:
        """The user's lines that a call computes; the last one counts as its own."""
        names = set(self._module.origins.get(origin or "", ()))
        return lines_of(node for name, node in self._before.items() if name in names)

    def _evaluated(self, value: Any) -> Any:
        """The value of an expression: a node, unwritten memory or a part of it, or a literal."""
        match value:
            case Name():
                return self._named(value)
            case NewTensor():
                return _Unwritten(value)
            case View(base, layout):
                return self._view(self._named(base), layout)
            case Expectation():
                self._check_expectation(value, self._named(value.of))
                return None
            case Geometry(of, method):
                return self._geometry(self._node(self._named(of)), method)
            case Item(of, index):
                whole = self._node(self._evaluated(of))
                is_sizes = isinstance(whole, list)
                return whole[index] if is_sizes else self._call(getitem, whole, index)
            case KernelCall():
                return self._kernel(value)
            case OperatorCall():
                return self._operator(value)
            case tuple():
                return tuple(self._evaluated(item) for item in value)
        return value

    def _named(self, name: Name) -> Any:
        """The value that a name denotes."""
        if name.name not in self._values:
            raise UnsupportedError(f"Inductor wrote a name that is not known here: {name.name}")
        return self._values[name.name]

    def _geometry(self, tensor: Node, method: str) -> tuple[Any, ...]:
        """The sizes or strides of a tensor: numbers, and nodes for symbolic ones."""
        operator = {"size": _aten.sym_size.int, "stride": _aten.sym_stride.int}[method]
        sizes = getattr(tensor.meta["val"], method)()
        return tuple(
            n if isinstance(n, int) else self._call(operator, tensor, i)
            for i, n in enumerate(sizes)
        )

    def _view(self, base: Any, layout: ViewLayout) -> Any:
        """A part of a value's memory."""
        match base:
            case _Part(of, outer):
                offset = sum_of(outer.offset, layout.offset)
                return self._view(of, ViewLayout(layout.size, layout.stride, offset))
            case _Unwritten() if base not in self._written:
                return _Part(base, layout)
        return self._part(self._node(base), layout)

    def _part(self, tensor: Node, layout: ViewLayout) -> Node:
        """A view whose offset counts from the tensor's beginning, not from its memory's.

        A transposed tensor is written as such, so that it is right for a weight of other strides
        too, which is only noticed by calls that check guards.
        """
        if layout.offset != 0:
            tensor = self._from_offset(tensor, layout)
        order = permutation(tensor.meta["val"], layout.size, layout.stride)
        if order is not None:
            return self._call(_aten.permute.default, tensor, order)
        size, stride = self._sizes(*layout.size), self._sizes(*layout.stride)
        return self._call(_aten.as_strided.default, tensor, size, stride)

    def _from_offset(self, tensor: Node, layout: ViewLayout) -> Node:
        """A view that begins where the layout does: of the tensor's own elements if possible."""
        index = index_at(tensor.meta["val"], layout.offset)
        if index is None:
            end = end_of(layout.size, layout.stride, layout.offset)
            flat = self._call(_aten.as_strided.default, tensor, self._sizes(end), [1])
            return self._call(_aten.slice.Tensor, flat, 0, *self._sizes(layout.offset))
        for dimension, i in enumerate(index):
            if i:
                tensor = self._call(_aten.slice.Tensor, tensor, dimension, i)
        return tensor

    def _node(self, value: Any) -> Any:
        """A value as an argument of an operator; adds an allocation for unwritten memory."""
        match value:
            case _Unwritten():
                if value not in self._written:
                    self._written[value] = self._allocation(value.tensor)
                return self._written[value]
            case _Part(of, layout):
                return self._view(self._node(of), layout)
            case Expression(text):
                return self._sizes(text)[0]
            case tuple():
                return [self._node(item) for item in value]
        return value

    def _allocation(self, new: NewTensor) -> Node:
        return self._call(
            _aten.empty_strided.default,
            self._sizes(*new.size),
            self._sizes(*new.stride),
            dtype=new.dtype,
            device=torch.device(new.device),
        )

    def _sizes(self, *sizes: Size) -> list[Any]:
        """Sizes as arguments of an operator: numbers, and nodes that compute them from symbols."""
        return [evaluated(size, self._symbol, self._call) for size in sizes]

    def _symbol(self, name: str) -> Any:
        return self._named(Name(name))

    def _kernel(self, call: KernelCall) -> None:
        """Adds a call to a kernel's operator, which allocates the memory that it writes first."""
        declared = self._declared[call.kernel]
        taken: dict[Node, bool] = {}
        new: dict[_Unwritten, None] = {}
        arguments: list[Argument | Size] = []
        for is_written, each in zip(declared.writes, call.args, strict=True):
            value = self._evaluated(each)
            if is_written is None:
                arguments.append(self._number(value, call))
                continue
            of, layout = (value.of, value.layout) if isinstance(value, _Part) else (value, None)
            if isinstance(of, _Unwritten) and of not in self._written:
                new.setdefault(of)
                arguments.append(Argument(True, list(new).index(of), layout))
                continue
            node = self._node(value)
            taken[node] = taken.get(node, False) or is_written
            arguments.append(Argument(False, list(taken).index(node)))
        signature = Signature(
            tuple(_taken(node, is_written) for node, is_written in taken.items()),
            tuple(each.tensor for each in new),
            tuple(arguments),
        )
        kernel = self._module.globals[call.kernel]
        if call.kernel.startswith("triton_"):
            kernel = triton_launch(kernel, declared.writes)
        operator = kernel_operator(call.kernel, kernel, declared.source, signature)
        symbols = [self._symbol(name) for name in signature.symbols]
        given = [*signature.operator_arguments(list(taken)), *symbols]
        result = self._call(operator, *given, name=short_name(call.kernel))
        several = len(new) > 1
        for i, memory in enumerate(new):
            self._written[memory] = self._call(getitem, result, i) if several else result

    def _operator(self, call: OperatorCall) -> Any:
        """Adds a call to one of PyTorch's operators."""
        kwargs = {key: self._evaluated(value) for key, value in call.kwargs.items()}
        args = [self._node(self._evaluated(value)) for value in call.args]
        out = kwargs.pop("out", None)
        kwargs = {key: self._node(value) for key, value in kwargs.items()}
        if out is None:
            return self._call(_overload(call, "default"), *args, **kwargs)
        if isinstance(out, _Unwritten) and out not in self._written:
            made = self._call(_overload(call, "default"), *args, **kwargs)
            if self._has_layout(made.meta["val"], out.tensor):
                self._written[out] = made
                return made
            self._graph.erase_node(made)
        return self._call(_overload(call, "out"), *args, **kwargs, out=self._node(out))

    def _check_expectation(self, expected: Expectation, value: Any) -> None:
        """Raises an error if an operator returns a tensor that Inductor's kernels do not expect."""
        if not isinstance(value, Node):
            return
        tensor = value.meta["val"]
        is_of_dtype = expected.dtype in (None, tensor.dtype)
        if not (is_of_dtype and self._fits(tensor, expected.size, expected.stride)):
            raise UnsupportedError(
                f"Inductor expects {expected.of.name} to have the sizes {expected.size}, strides "
                f"{expected.stride} and dtype {expected.dtype or tensor.dtype}, where PyTorch's "
                f"operator returns {_layout(value)} of {tensor.dtype}"
            )

    def _fits(self, tensor: Tensor, size: Sequence[Size], stride: Sequence[Size]) -> bool:
        """Whether these sizes and strides locate the same elements as a fake tensor's own.

        If that depends on symbols, PyTorch adds guards on them.
        """
        size, stride = self._known(size), self._known(stride)
        strides = zip(size, tensor.stride(), stride, strict=True)
        return are_guarded_same(tensor.shape, size) and (
            any(is_same_size(n, 0) for n in size)
            or all(is_same_size(n, 1) or is_guarded_same(one, other) for n, one, other in strides)
        )

    def _known(self, sizes: Sequence[Size]) -> list[Any]:
        """Sizes in terms of the fake tensors' symbols."""
        symbols = {name: node.meta["val"] for name, node in self._symbols.items()}
        return [value_of(size, symbols) for size in sizes]

    def _has_layout(self, tensor: Any, new: NewTensor) -> bool:
        """Whether an operator returns what a kernel expects of memory that it would write to."""
        return (
            isinstance(tensor, Tensor)
            and are_same_sizes(tensor.shape, self._known(new.size))
            and are_same_sizes(tensor.stride(), self._known(new.stride))
            and tensor.dtype == new.dtype
        )

    def _number(self, value: Any, call: KernelCall) -> Size:
        """A number that a kernel takes, or its text."""
        if isinstance(value, Node):
            value = value.meta["val"]
        match value:
            case Expression(text):
                return text
            case int() | torch.SymInt():
                return size_of(value)
        raise UnsupportedError(f"{call.kernel} takes {value!r:.99}, which is not a whole number")

    def _call(self, target: Any, *args: Any, name: str | None = None, **kwargs: Any) -> Node:
        args, kwargs = _positional(target, args, kwargs)
        name = name or target.__name__.partition(".")[0]
        node = self._graph.create_node("call_function", target, args, kwargs, name)
        node.meta = dict(self._meta)
        if target is getitem:
            node.meta["val"] = args[0].meta["val"][args[1]]
        else:
            node.meta["val"] = fake_result(node, self._module.fake_mode)
        return node


def _positional(
    target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as AOTAutograd passes them: by position, except keyword-only ones."""
    args, kwargs = (*args,), dict(kwargs)
    for parameter in schema_of(target).arguments[len(args) :] if kwargs else ():
        if parameter.kwarg_only or parameter.name not in kwargs:
            break
        args = (*args, kwargs.pop(parameter.name))
    return args, kwargs


def _layout(node: Node) -> tuple[tuple[Size, ...], tuple[Size, ...]]:
    tensor = node.meta["val"]
    return tuple(map(size_of, tensor.shape)), tuple(map(size_of, tensor.stride()))


def _taken(node: Node, is_written: bool) -> Taken:
    return Taken(*_layout(node), node.meta["val"].dtype, is_written)


def _overload(call: OperatorCall, default: str) -> OpOverload:
    namespace, name, overload = call.path
    stood_for = original_of(name) if namespace == KERNELS else None
    if stood_for is not None:
        return stood_for
    packet = getattr(getattr(torch.ops, namespace), name, None)
    found = getattr(packet, overload or default, None)
    if found is None:
        raise UnsupportedError(f"Inductor calls {'.'.join(filter(None, call.path))}, unknown here")
    operator: OpOverload = found
    return operator
