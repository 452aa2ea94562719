"""Values, attributes and random numbers are restored after a call to a model."""

import copy
import logging
import random
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from nimble_fx.frontend.models.model_function import Arguments
from nimble_fx.frontend.models.preserve_state import preserve_state
from tests.support.bits import bytes_of

NOTHING = Arguments((), {})


class Restless(nn.Module):
    """Changes all that a module can change in a call."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("seen", torch.full((3,), float("nan")))
        self.calls = 0
        self.last: Tensor | None = None
        self.plain, self.listed, self.seen_in_all = torch.zeros(3), [torch.zeros(3)], [0]
        self.counts: dict[str, Any] = {"calls": 0, "of": [set()]}
        self.widened, self.recast = torch.ones(3), torch.ones(3)
        self.every_other, self.moved, self.shrunk = (
            torch.arange(8)[1:7:2],
            torch.ones(3),
            torch.ones(3),
        )

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.mul_(2)
        self.seen: Tensor = self.seen + 1
        self.register_buffer("other", x)
        self.calls, self.last = self.calls + 1, x
        self.plain.add_(1)
        self.listed[0].add_(1)
        self.seen_in_all.append(1)
        self.every_other.resize_(16).zero_()
        self.moved.set_(self.plain.untyped_storage())
        self.moved.add_(1)
        self.shrunk.untyped_storage().resize_(0)
        self.widened.data = self.widened.data.double()
        self.recast.data = self.recast.data.view(torch.int32)
        self.counts["calls"] += 1
        self.counts["of"][0].add("x")
        result: Tensor = self.norm(x) + torch.rand(3) * random.random()
        return result


class ClearsGradients(nn.Module):
    """Drops one gradient, writes to another, and replaces the third."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([*torch.ones(4, 3)])
        for weight, gradient in zip(self.weights, torch.arange(9.0).view(3, 3), strict=False):
            weight.grad = gradient

    def forward(self, x: Tensor) -> Tensor:
        dropped, written, *replaced = self.weights
        dropped.grad = None
        written.grad.add_(1)
        for weight in replaced:
            weight.grad = torch.ones(3)
        return x


def test_gradients_are_the_same_tensors_with_the_same_values() -> None:
    model = ClearsGradients()
    before = [weight.grad for weight in model.parameters()]
    values = [None if gradient is None else gradient.clone() for gradient in before]
    with preserve_state(model, NOTHING):
        model(torch.ones(3))
    for weight, gradient, value in zip(model.parameters(), before, values, strict=True):
        assert weight.grad is gradient
        assert (gradient is None) or torch.equal(gradient, value)  # type: ignore[arg-type]


def test_a_dropped_gradient_fits_its_tensor_again() -> None:
    weights = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    for weight in weights:
        weight.grad = torch.ones(3)
    gradients = [weight.grad for weight in weights]

    def packs(half: nn.Parameter, longer: nn.Parameter) -> None:
        half.grad = longer.grad = None
        half.data, longer.data = half.data.half(), torch.ones(5)

    with preserve_state(partial(packs, *weights), NOTHING):
        packs(*weights)
    for weight, gradient in zip(weights, gradients, strict=True):
        assert weight.grad is gradient
        assert torch.equal(weight, torch.ones(3))


def bits(model: nn.Module) -> dict[str, bytes]:
    return {k: bytes_of(v) for k, v in model.state_dict().items()}


def state(model: nn.Module) -> tuple[Any, ...]:
    attributes = {k: v for k, v in model.__dict__.items() if not k.startswith("_")}
    tensors = {k: id(v) for k, v in [*model.named_parameters(), *model.named_buffers()]}
    attributes = copy.deepcopy(attributes)
    attributes = {k: _described(v) for k, v in attributes.items()}
    return bits(model), attributes, tensors, random.getstate(), torch.get_rng_state().tolist()


def _described(value: object) -> object:
    if not isinstance(value, Tensor):
        return str(value)
    return (
        value.tolist(),
        value.dtype,
        value.stride(),
        value.storage_offset(),
        value.untyped_storage().nbytes(),
    )


@pytest.mark.parametrize("fails", [False, True])
def test_a_module_is_as_it_was_however_the_block_ends(fails: bool) -> None:
    model, x = Restless(), torch.randn(2, 3)
    before = state(model)
    try:
        with preserve_state(model, Arguments((x,), {})):
            model(x)
            assert bits(model) != before[0]
            if fails:
                raise ZeroDivisionError
    except ZeroDivisionError:
        assert fails
    assert state(model) == before


class Refusing:
    """Methods that a container does not allow to be called."""

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError("not allowed")

    clear = update = extend = __setitem__ = _refuse


class RefusingList(Refusing, list[Any]):
    """Like `torch.fx.immutable_collections.immutable_list`."""


class RefusingDict(Refusing, dict[Any, Any]):
    """Like `transformers.utils.ModelOutput`."""


class RefusingDeque(Refusing, deque[Any]):
    """One of both ends."""


class RefusingOrderedDict(Refusing, OrderedDict[Any, Any]):
    """An ordered one."""


@given(
    st.lists(st.integers(0, 5)),
    st.lists(st.integers(0, 5)),
)
def test_containers_have_the_items_that_they_had_and_in_their_order(
    before: list[int], after: list[int]
) -> None:
    def pairs(keys: list[int]) -> list[tuple[int, str]]:
        return [(key, str(key)) for key in keys]

    model = nn.Module()
    one: Any = model.__dict__.setdefault("one", RefusingList(before))
    two: Any = model.__dict__.setdefault("two", RefusingDict(pairs(before)))
    three: Any = model.__dict__.setdefault("three", RefusingOrderedDict())
    four: Any = model.__dict__.setdefault("four", set(before))
    five: Any = model.__dict__.setdefault("five", RefusingDeque(before))
    for key, value in pairs(before):
        OrderedDict.__setitem__(three, key, value)
    with preserve_state(model, NOTHING):
        list.__setitem__(one, slice(None), after)
        dict.clear(two)
        dict.update(two, pairs(after))
        for key in before[:1] + after:
            OrderedDict.__setitem__(three, key, "new")
            OrderedDict.move_to_end(three, key)
        four ^= set(after)
        deque.extendleft(five, after)
        deque.rotate(five, 1)
    assert list.__eq__(one, before)
    assert [*dict.items(two)] == [*dict(pairs(before)).items()]
    assert [*OrderedDict.items(three)] == [*dict(pairs(before)).items()]
    assert four == set(before)
    assert [*deque.__iter__(five)] == before


def test_generators_and_numpys_global_one_are_as_they_were() -> None:
    own, passed = (torch.Generator().manual_seed(i) for i in range(2))
    numpy = pytest.importorskip("numpy")

    def program(generator: torch.Generator) -> Any:
        return [torch.rand(3, generator=each) for each in (own, generator)], numpy.random.rand(700)

    def states() -> Any:
        _, keys, position, *_ = numpy.random.get_state()
        return keys.tolist(), position, own.get_state().tolist(), passed.get_state().tolist()

    before = states()
    with preserve_state(program, Arguments((passed,), {})):
        program(passed)
        assert all(one != other for one, other in zip(states(), before, strict=True))
    assert states() == before


class Predictor:
    """Has a module, and is none."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def predict(self, x: Tensor) -> Any:
        return self.net(x)

    __call__ = predict


@pytest.mark.parametrize(
    "kind",
    [
        "closure",
        "method",
        "partial",
        "decorated",
        "of another function",
        "bound",
        "callable",
        "typed in",
    ],
)
def test_a_functions_modules_are_as_they_were(kind: str) -> None:
    model = Restless()

    def program(x: Tensor) -> Any:
        return model(x)

    def caller(x: Tensor) -> Any:
        return caller(x[1:]) if len(x) > 2 else program(x)

    def given(net: nn.Module, x: Tensor) -> Any:
        return net(x)

    functions: dict[str, Callable[..., Any]] = {
        "closure": program,
        "method": model.forward,
        "partial": partial(given, model),
        "decorated": torch.no_grad()(program),
        "of another function": caller,
        "bound": Predictor(model).predict,
        "callable": Predictor(model),
    }
    scope: dict[str, Any] = {"model": model, "__name__": "__main__"}
    exec("def typed_in(x): return model(x)", scope)
    functions["typed in"] = scope["typed_in"]
    function = functions[kind]
    before = copy.deepcopy(bits(model))
    with preserve_state(function, NOTHING):
        function(torch.randn(2, 3))
    assert bits(model) == before
    assert model.calls == 0


def test_a_function_whose_closure_is_not_complete_is_left_alone() -> None:
    def program(x: Tensor) -> Any:
        return later(x)

    with preserve_state(lambda x: program(x), NOTHING):
        pass
    later = torch.relu
    assert torch.equal(program(torch.ones(1)), torch.ones(1))


def test_objects_of_python_itself_are_not_looked_into() -> None:
    log = logging.getLogger("nimble_tests")
    info, level = log.info, log.level

    def program(x: Tensor) -> Tensor:
        info("called")
        return x

    with preserve_state(program, NOTHING):
        log.setLevel(level + 1)
    assert log.level == level + 1
    log.setLevel(level)
