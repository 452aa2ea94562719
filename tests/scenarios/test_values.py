"""Unusual inputs and outputs are accepted and returned as in eager."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from tests.support.beside_eager import VIRTUAL, Compile, assert_as_eager


class Pair(NamedTuple):
    """A named tuple of results."""

    first: Tensor
    second: Tensor


@dataclass
class Record:
    """A dataclass of results, with one that is no tensor."""

    value: Tensor
    name: str


def structured_outputs(compile_: Compile) -> Any:
    def run(x: Tensor, *more: Tensor, scale: float = 1.0, **named: Tensor) -> Any:
        record = Record(torch.relu(x) * scale, "kept")
        nested = {"pair": Pair(x + 1, sum(more, x)), "named": [named["z"] * 2, None, (3, "t")]}
        return record, nested

    compiled = compile_(run)
    x = torch.randn(4)
    record, nested = compiled(x, x + 1, x + 2, scale=2.5, z=x * 3)
    assert type(nested["pair"]) is Pair
    return record.value, record.name, nested, compiled(x, z=x)[1]


def writing_to_inputs(compile_: Compile) -> Any:
    def run(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        y[1:].mul_(x[1:])
        x.t_() if x.dim() == 2 else x.relu_()
        return x + y

    x, y = torch.randn(4), torch.randn(4)
    compiled = compile_(run)
    first = compiled(x, y)
    base = torch.zeros(8)
    second = compiled(base[:4], base[4:])
    return first, x, y, second, base


def inputs_that_share_memory(compile_: Compile) -> Any:
    def run(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return x * y

    compiled, x = compile_(run), torch.arange(6.0)
    same = compiled(x, x).clone()
    overlapping = compiled(x[:4], x[2:]).clone()
    return same, overlapping, compiled(x, torch.ones(6)), x


def outputs_that_are_inputs(compile_: Compile) -> Any:
    def run(x: Tensor, y: Tensor) -> Any:
        return x, x.view(2, 2), y[1:], y, torch.relu(y), x.t() if x.dim() < 2 else x.mT

    x, y = torch.arange(4.0), torch.arange(4.0)
    outs = compile_(run)(x, y)
    outs[1].add_(5)
    outs[2].mul_(2)
    return *outs, x, y, [out.data_ptr() in (x.data_ptr(), y.data_ptr()) for out in outs]


def layouts(compile_: Compile) -> Any:
    def run(x: Tensor) -> Any:
        return torch.relu(x) + 1, x * 2, x.sum(-1), torch.cat([x, x]), x.clone()

    compiled = compile_(run)
    plain = torch.randn(2, 3, 4, 5)
    return [
        compiled(x)
        for x in (
            plain,
            plain.to(memory_format=torch.channels_last),
            plain.permute(3, 1, 0, 2),
            plain[:, ::2, 1:],
            torch.randn(1, 3, 1, 5).expand(2, 3, 4, 5),
            torch.randn(5).expand(2, 3, 4, 5),
        )
    ]


def elements(compile_: Compile) -> Any:
    def run(x: Tensor) -> Any:
        return x + x, x * 2, x.to(torch.float32) if not x.is_complex() else x.abs(), x == x

    compiled = compile_(run)
    dtypes = (torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8)
    reals = [compiled(torch.arange(6).to(dtype)) for dtype in dtypes]
    z = torch.randn(4, dtype=torch.complex64)
    return reals, compiled(z), compiled(z.conj()), compiled(z.to(torch.complex128))


def complex_gradients(compile_: Compile) -> Any:
    z = torch.randn(4, dtype=torch.complex64, requires_grad=True)
    y = compile_(lambda z: (z * z.conj() + torch.fft.fft(z)).abs().sum())(z)
    y.backward()
    return y, z.grad


def gradients_of_complex_numbers(compile_: Compile) -> Any:
    z = torch.randn(4, dtype=torch.complex64, requires_grad=True)
    compile_(lambda z: torch.exp(1j * z) + z * 2j)(z).abs().sum().backward()
    return z.grad


def nothing_and_scalars(compile_: Compile) -> Any:
    def run(x: Tensor) -> Any:
        return torch.relu(x) + 1, x.sum(), torch.cat([x, x]) if x.dim() else x, x * x.sum()

    compiled = compile_(run)
    return [compiled(torch.ones(shape)) for shape in ((), (0,), (0, 3), (1,), (2, 0))]


def growing_shapes(compile_: Compile) -> Any:
    def run(x: Tensor, n: int) -> Any:
        y = x.repeat(n, 1)
        return y, torch.relu(y).view(-1, 2), x.shape[0] * n

    compiled = compile_(run, dynamic=True)
    return [compiled(torch.ones(rows, 4), n) for rows, n in ((2, 3), (5, 2), (5, 4), (1, 1))]


def sizes_that_data_decide(compile_: Compile) -> Any:
    def run(x: Tensor) -> Any:
        return x[x > 0] * 2, torch.nonzero(x), torch.relu(x)

    compiled = compile_(run)
    return compiled(torch.tensor([1.0, -1.0, 2.0])), compiled(torch.tensor([-1.0, -1.0, -2.0]))


def copies_of_a_compiled_module(compile_: Compile) -> Any:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(3, 4)
    run = compile_(model)
    first = run(x)
    other = copy.deepcopy(run)
    with torch.no_grad():
        next(other.parameters()).zero_()
    state = {k.removeprefix("_orig_mod."): v for k, v in run.state_dict().items()}
    fresh = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    fresh.load_state_dict(pickle.loads(pickle.dumps(state)))
    return first, other(x), run(x), fresh(x)


class LinearRelu(nn.Module):
    """A module of the user's: Dynamo compiles no `nn.Sequential` in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x))


def compiled_in_place(compile_: Compile) -> Any:
    model, x = LinearRelu(), torch.randn(3, 4)
    keywords = getattr(compile_, "keywords", None)
    if keywords is not None:
        model.compile(**keywords)
    first = model(x)
    again = pickle.loads(pickle.dumps(model))
    return first, again(x), copy.deepcopy(model)(x), sorted(model.state_dict())


def a_subclass_of_two_tensors(compile_: Compile) -> Any:
    from torch.testing._internal.two_tensor import TwoTensor

    x = TwoTensor(torch.randn(4), torch.randn(4))
    y = compile_(lambda x: torch.relu(x) + torch.sigmoid(x) * 2)(x)
    return type(y).__name__, y.a, y.b


def training_a_subclass_of_two_tensors(compile_: Compile) -> Any:
    from torch.testing._internal.two_tensor import TwoTensor

    x: Any = TwoTensor(torch.randn(4), torch.randn(4)).requires_grad_()
    compile_(lambda x: torch.relu(x) * torch.sigmoid(x))(x).sum().backward()
    return x.grad.a, x.grad.b


def jagged_arguments(compile_: Compile) -> Any:
    """A result has the jagged size of the argument, so that the two can be added."""
    run, layer, sums = compile_(lambda n: torch.relu(n) * 2), nn.Linear(3, 3), []
    train = compile_(lambda n: torch.sigmoid(layer(n)))
    for sizes in ((2, 3), (2, 3), (4, 1)):
        parts = [torch.randn(n, 3) for n in sizes]
        jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
        sums.append((run(jagged) + jagged).values())
        train(jagged).values().sum().backward()
    assert layer.weight.grad is not None
    return sums, layer.weight.grad


def module_attributes_that_change(compile_: Compile) -> Any:
    model: Any = nn.Linear(4, 4)
    x = torch.randn(3, 4)

    def run(x: Tensor) -> Any:
        return model(x) * model.scale

    model.scale = 2.0
    compiled = compile_(run)
    first = compiled(x)
    model.scale = 3.0
    model.weight = nn.Parameter(torch.ones(4, 4))
    return first, compiled(x)


def gradient_modes_that_a_function_leaves(compile_: Compile) -> Any:
    def disables(x: Tensor) -> Tensor:
        torch._C._set_grad_enabled(False)
        return x * 2

    def enables(x: Tensor) -> Tensor:
        torch._C._set_grad_enabled(True)
        return x * 2

    left = []
    for function, before in ((disables, True), (enables, False)):
        compiled = compile_(function)
        for _ in range(2):
            with torch.set_grad_enabled(before):
                compiled(torch.ones(3))
                left.append(torch.is_grad_enabled())
    return left


def tensors_that_autograd_saved_and_a_call_overwrites(compile_: Compile) -> Any:
    """Autograd sees that a saved parameter or input was written to, and refuses the backward."""
    weight, x = nn.Parameter(torch.ones(3)), torch.ones(3, requires_grad=True)

    def run(y: Tensor) -> Tensor:
        weight.add_(y)
        return y.mul_(2)

    compiled = compile_(run)
    for _ in range(2):
        y = torch.ones(3)
        losses = (weight * x).sum(), (y * x).sum()
        with torch.no_grad():
            compiled(y)
        for loss in losses:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()
    return weight, y


SCENARIOS: tuple[Callable[[Compile], Any], ...] = (
    *(structured_outputs, writing_to_inputs, outputs_that_are_inputs),
    *(layouts, elements, complex_gradients, gradients_of_complex_numbers),
    *(nothing_and_scalars, growing_shapes),
    *(copies_of_a_compiled_module, compiled_in_place),
    *(a_subclass_of_two_tensors, training_a_subclass_of_two_tensors),
    *(module_attributes_that_change, gradient_modes_that_a_function_leaves),
    *(tensors_that_autograd_saved_and_a_call_overwrites, jagged_arguments),
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_values_are_eagers(scenario: Any) -> None:
    assert_as_eager(scenario, VIRTUAL)


@pytest.mark.slow
def test_jagged_sizes_have_no_number_for_predictions() -> None:
    assert_as_eager(jagged_arguments, {"on_fallback": "silent"})


@pytest.mark.parametrize("scenario", [inputs_that_share_memory, sizes_that_data_decide])
def test_values_are_eagers_where_nothing_can_be_frozen(scenario: Any) -> None:
    assert_as_eager(scenario, VIRTUAL | {"on_fallback": "silent"})
