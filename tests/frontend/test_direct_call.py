"""Calls past Dynamo are eager's after any change, and happen where nothing but a program runs."""

import copy
import dataclasses
import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import nimble_fx
from nimble_fx.frontend.direct_call import MAX_DIRECT_CALLS, NotDirectError, _builder
from tests.support.eager import assert_same
from tests.support.models import Branchy

DEVICES: list[dict[str, Any]] = [{}, {"device": "virtual", "seed": 3}]


class Net(nn.Module):
    """Reads what may change between calls: modules, tensors, numbers, the mode."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.shift: Tensor
        self.register_buffer("shift", torch.ones(4))
        self.scale = 2.0

    def forward(self, x: Tensor, others: dict[str, list[Tensor]]) -> dict[str, Any]:
        left = torch.relu(self.a(x)) * self.scale + self.shift
        right = self.b(others["y"][0]) + (1 if self.training else 0)
        return {"sum": left + right, "parts": [left, (right,)]}


Change = Callable[[Net], object]


def new_weight(net: Net) -> None:
    net.a.weight = nn.Parameter(torch.randn_like(net.a.weight))


def new_memory(net: Net) -> None:
    net.a.weight.data = torch.randn_like(net.a.weight)


def new_layer(net: Net) -> None:
    net.a = nn.Linear(4, 4).to(net.shift.dtype).train(net.training)


def tied(net: Net) -> None:
    first: Any = net.b[0]
    net.a.weight = first.weight


CHANGES: dict[str, Change] = {
    "nothing": lambda net: None,
    "a weight in place": lambda net: net.a.weight.data.add_(0.5),
    "a new weight": new_weight,
    "a weight in other memory": new_memory,
    "a new layer": new_layer,
    "layers the other way round": lambda net: setattr(net, "a", net.b[0]),
    "tied weights": tied,
    "a new layer in a container": lambda net: net.b.__setitem__(0, nn.Linear(4, 4)),
    "a number": lambda net: setattr(net, "scale", net.scale + 1),
    "a buffer": lambda net: setattr(net, "shift", torch.randn_like(net.shift)),
    "training": lambda net: net.train(),
    "evaluation": lambda net: net.eval(),
    "part of the mode": lambda net: net.b.train(),
    "loaded": lambda net: net.load_state_dict({k: v * 0.9 for k, v in net.state_dict().items()}),
    "a hook": lambda net: net.a.register_forward_hook(lambda module, args, out: out + 1),
    "no gradients for it": lambda net: net.a.requires_grad_(False),
    "no bias": lambda net: setattr(net.a, "bias", None),
    "another forward": lambda net: setattr(net.a, "forward", torch.sin),
}

INPUTS: dict[str, Callable[[Tensor, Tensor], tuple[Any, ...]]] = {
    "plain": lambda x, y: (x, {"y": [y]}),
    "other values": lambda x, y: (x + 1, {"y": [y * 2]}),
    "other sizes": lambda x, y: (x[:2], {"y": [y[:2]]}),
    "other strides": lambda x, y: (x.t(), {"y": [y.t()]}),
    "a view": lambda x, y: (torch.cat([x, x])[4:], {"y": [y]}),
    "the same twice": lambda x, y: (x, {"y": [x]}),
    "more in a list": lambda x, y: (x, {"y": [y, x]}),
    "with gradients": lambda x, y: (x.clone().requires_grad_(), {"y": [y]}),
    "a subclass": lambda x, y: (nn.Parameter(x), {"y": [y]}),
}

MODES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "no_grad": torch.no_grad,
    "none": nullcontext,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}

STEPS = st.lists(
    st.tuples(*[st.sampled_from(list(each)) for each in (CHANGES, INPUTS, MODES)]), max_size=4
)


@pytest.mark.parametrize("options", DEVICES, ids=str)
@settings(deadline=None)
@given(STEPS)
def test_calls_are_eagers_after_any_change(
    options: dict[str, Any], steps: list[tuple[str, str, str]]
) -> None:
    torch.manual_seed(0)
    net, (x, y) = Net().eval(), torch.randn(2, 4, 4)
    eager = copy.deepcopy(net)
    with torch._dynamo.config.patch(recompile_limit=64):
        compiled = nimble_fx.compile(net, INPUTS["plain"](x, y), **options)
        for step in [("nothing", "plain", "no_grad")] * 2 + steps:
            for model in (net, eager):
                torch.manual_seed(1)
                CHANGES[step[0]](model)
            for _ in range(2):
                arguments = INPUTS[step[1]](x, y)
                with torch.no_grad(), MODES[step[2]]():
                    expected = eager(*arguments)
                with MODES[step[2]]():
                    assert_same(compiled(*arguments), expected)
            assert_same(dict(net.state_dict()), dict(eager.state_dict()))


class RefusedError(Exception):
    """Raised in place of a call by Dynamo."""


def only_direct(compiled: nimble_fx.Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a call by Dynamo is an error."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise RefusedError

    monkeypatch.setattr(compiled._guarded, "_run", refuse)


@pytest.mark.parametrize("options", DEVICES, ids=str)
def test_after_the_first_call_dynamo_is_not_asked(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    net, (x, y) = Net().eval(), torch.randn(2, 4, 4)
    arguments = INPUTS["plain"](x, y)
    compiled = nimble_fx.compile(net, arguments, **options)
    compiled(*arguments)
    only_direct(compiled, monkeypatch)
    for change in ("nothing", "a weight in place", "a new weight", "a weight in other memory"):
        CHANGES[change](net)
        with torch.no_grad():
            assert_same(compiled(*INPUTS["other values"](x, y)), net(*INPUTS["other values"](x, y)))
    with pytest.raises(RefusedError):
        compiled(*INPUTS["other sizes"](x, y))


def gradients(net: Net, call: Callable[..., Any], arguments: tuple[Any, ...]) -> list[Any]:
    """The results of a call, and the gradients of the parameters and of the first argument."""
    torch.manual_seed(1)
    results = call(*arguments)
    leaves = [x for x in (*net.parameters(), arguments[0]) if x.requires_grad]
    loss = results["sum"].square().sum() + results["parts"][0].sum()
    found: list[Any] = []
    if loss.requires_grad:
        found += torch.autograd.grad(loss, leaves, allow_unused=True)
    return [results, found]


@pytest.mark.parametrize("options", DEVICES, ids=str)
@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(list(CHANGES)),
            st.sampled_from(["plain", "other values", "other sizes", "with gradients"]),
            st.booleans(),
        ),
        max_size=3,
    )
)
def test_training_is_eagers_after_any_change(
    options: dict[str, Any], steps: list[tuple[str, str, bool]]
) -> None:
    torch.manual_seed(0)
    net, (x, y) = Net().train(), torch.randn(2, 4, 4)
    eager = copy.deepcopy(net)
    with torch._dynamo.config.patch(recompile_limit=64):
        compiled = nimble_fx.compile(net, INPUTS["plain"](x, y), training=True, **options)
        for change, inputs, grad in [("nothing", "plain", True)] * 2 + steps:
            for model in (net, eager):
                torch.manual_seed(1)
                CHANGES[change](model)
            for _ in range(2):
                with torch.set_grad_enabled(grad):
                    expected = gradients(eager, eager, INPUTS[inputs](x, y))
                    assert_same(gradients(net, compiled, INPUTS[inputs](x, y)), expected)
            assert_same(dict(net.state_dict()), dict(eager.state_dict()))


def test_a_training_is_called_directly_too(monkeypatch: pytest.MonkeyPatch) -> None:
    net, (x, y) = Net().train(), torch.randn(2, 4, 4)
    compiled = nimble_fx.compile(net, INPUTS["plain"](x, y), training=True)
    compiled(*INPUTS["plain"](x, y))
    only_direct(compiled, monkeypatch)
    for _ in range(3):
        eager = copy.deepcopy(net)
        arguments = INPUTS["other values"](x, y)
        assert_same(gradients(net, compiled, arguments), gradients(eager, eager, arguments))
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.sub_(0.1)
    with torch.no_grad(), pytest.raises(RefusedError):
        compiled(*INPUTS["plain"](x, y))


def test_keyword_arguments_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    net, (x, y) = Net().eval(), torch.randn(2, 4, 4)
    compiled = nimble_fx.compile(net, {"x": x, "others": {"y": [y]}})
    compiled(x=x, others={"y": [y]})
    only_direct(compiled, monkeypatch)
    with torch.no_grad():
        assert_same(compiled(x=y, others={"y": [x]}), net(y, {"y": [x]}))
    with pytest.raises(RefusedError):
        compiled(y, others={"y": [x]})


class Pair(NamedTuple):
    """A container whose items have names."""

    x: Tensor
    y: Tensor


def test_containers_of_other_kinds_among_the_arguments_are_left_to_dynamo() -> None:
    x = torch.ones(2)
    compiled = nimble_fx.compile(lambda pair: pair.x + 2 * pair.y, (Pair(x, x + 1),))
    for i in range(3):
        assert compiled(Pair(x, x + i)).tolist() == [3 + 2 * i] * 2


def test_each_of_several_shapes_is_called_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Branchy()
    shapes = [torch.randn(rows, 4) for rows in range(1, 1 + MAX_DIRECT_CALLS)]
    with torch._dynamo.config.patch(automatic_dynamic_shapes=False):
        compiled = nimble_fx.compile(net, shapes[0])
        for x in shapes:
            compiled(x)
    only_direct(compiled, monkeypatch)
    for x in shapes:
        assert_same(compiled(x), net(x).detach())


def test_a_model_that_is_a_function_is_called_directly_if_it_has_no_parameters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.randn(4)
    compiled = nimble_fx.compile(torch.sin, x)
    compiled(x)
    only_direct(compiled, monkeypatch)
    assert torch.equal(compiled(x + 1), torch.sin(x + 1))


@dataclasses.dataclass
class Result:
    """A class that PyTorch's trees do not know."""

    value: Tensor


class Config:
    """An object of the user's, which no module holds."""

    n = 0


GLOBAL: list[Any] = []


def appended(net: Any, x: Tensor) -> Tensor:
    net.seen.append(1)
    return x + len(net.seen)


def counted(net: Any, x: Tensor) -> Tensor:
    net.n += 1
    return x + net.n


def configured(net: Any, x: Tensor) -> Tensor:
    net.config.n += 1
    return x * 2


def stored(net: Any, x: Tensor) -> Tensor:
    net.last = x + 1
    return net.last


def replaced(net: Any, x: Tensor) -> Tensor:
    net.buffer = net.buffer + 1
    return x + net.buffer


def global_list(net: Any, x: Tensor) -> Tensor:
    GLOBAL.append(1)
    return x + len(GLOBAL)


def drawn(net: nn.Module, x: Tensor) -> Tensor:
    return x + random.random()


def written(net: nn.Module, x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


def reshaped(net: nn.Module, x: Tensor) -> Tensor:
    x.unsqueeze_(0)
    return x * 2


def a_view(net: nn.Module, x: Tensor) -> Tensor:
    return x[:2]


def itself(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    return x, x + 1


def of_a_class(net: nn.Module, x: Tensor) -> Result:
    return Result(x + 1)


def with_numbers(net: nn.Module, x: Tensor) -> tuple[Tensor, int, None]:
    return x + 1, len(x), None


def twice(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 1
    return y, y


def gradients_on(net: nn.Module, x: Tensor) -> Tensor:
    torch.set_grad_enabled(True)
    return x + 1


def broken(net: nn.Module, x: Tensor) -> Tensor:
    torch._dynamo.graph_break()
    return x + 1


EFFECTS = [
    *(appended, counted, configured, stored, replaced, global_list, drawn, written, reshaped),
    *(a_view, itself, of_a_class, with_numbers, twice, gradients_on, broken),
]


class Effect(nn.Module):
    """Calls one of these functions."""

    def __init__(self, effect: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__()
        self.effect, self.n, self.config, self.seen = effect, 0, Config(), list[int]()
        self.buffer: Tensor
        self.register_buffer("buffer", torch.zeros(4))

    def forward(self, x: Tensor) -> Any:
        return self.effect(self, x)


def state_after(effect: Effect, call: Callable[[Tensor], Any]) -> list[Any]:
    """Results, arguments and state of several calls; from the same global state each time."""
    GLOBAL.clear()
    random.seed(0)
    effect.config.n = 0  # nimble_fx.compile does not look into objects
    seen: list[Any] = []
    for i in range(5):
        x = torch.full((4,), float(i))
        with torch.no_grad():
            result = call(x)
            grad_mode = torch.is_grad_enabled()
        values = list(vars(result).values()) if isinstance(result, Result) else [result]
        shares = [y.untyped_storage()._cdata == x.untyped_storage()._cdata for y in tensors(values)]
        same = [y is x for y in tensors(values)], len({id(y) for y in tensors(values)})
        numbers = [effect.n, effect.config.n, *effect.seen, len(GLOBAL), grad_mode]
        kept = [effect.buffer.clone(), getattr(effect, "last", None)]
        seen.append([values, x, shares, same, numbers, kept])
    return seen


def tensors(values: list[Any]) -> list[Tensor]:
    """The tensors in a list or in a tuple in it."""
    flat = [each for value in values for each in (value if isinstance(value, tuple) else [value])]
    return [value for value in flat if isinstance(value, Tensor)]


@pytest.mark.parametrize("effect", EFFECTS, ids=lambda effect: effect.__name__)
@pytest.mark.parametrize("options", DEVICES, ids=str)
@pytest.mark.filterwarnings("ignore")
def test_what_a_model_does_beside_its_program_it_does_in_each_call(
    effect: Callable[[nn.Module, Tensor], Any], options: dict[str, Any]
) -> None:
    ours, eager = Effect(effect), Effect(effect)
    compiled = nimble_fx.compile(ours, torch.zeros(4), **options)
    assert_same(state_after(ours, compiled), state_after(eager, eager))


def test_a_list_among_the_arguments_is_written_to_in_each_call() -> None:
    def program(x: Tensor, seen: list[Tensor]) -> Tensor:
        seen[0] = x + 1
        return seen[0]

    x = torch.ones(2)
    compiled = nimble_fx.compile(program, (x, [x]))
    for _ in range(3):
        seen = [x]
        assert compiled(x, seen) is seen[0] is not x


def test_a_parameter_in_two_places_is_the_one_that_the_model_reads() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.first.weight = self.second.weight

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.second(x)
            return result

    net, x = Unused(), torch.randn(2, 4)
    compiled = nimble_fx.compile(net, x)
    for _ in range(2):
        compiled(x)
    net.first.weight = nn.Parameter(torch.zeros(4, 4))
    assert_same(compiled(x), net(x).detach())


def test_an_output_that_is_not_returned_is_for_what_is_passed_by() -> None:
    x, y = torch.zeros(1), torch.ones(1)
    with pytest.raises(NotDirectError, match="not made of new tensors alone"):
        _builder([x], (x, y))
    assert _builder([x, {"y": y}], (y, x))((x, y)) == [y, {"y": x}]


def test_a_stance_a_mode_and_a_trace_are_respected() -> None:
    net, x = Branchy(), torch.randn(2, 4)
    compiled = nimble_fx.compile(net, x)
    for _ in range(2):
        compiled(x)
    seen: list[bool] = []
    net.register_forward_pre_hook(lambda module, args: seen.append(torch.compiler.is_compiling()))
    with torch.compiler.set_stance("force_eager"):
        compiled(x)
    assert seen == [False]
    with FlopCounterMode(display=False) as flops:
        compiled(x)
    assert flops.get_total_flops() == 2 * (2 * 2 * 4 * 4)
    with pytest.raises(RuntimeError, match=r"jit\.trace"):
        torch.jit.trace(lambda x: compiled(x), x)


def test_a_compiled_model_may_be_part_of_another() -> None:
    net, x = Branchy(), torch.randn(2, 4)
    compiled = nimble_fx.compile(net, x)
    for _ in range(2):
        compiled(x)
    outer = torch.compile(lambda x: compiled(x) + 1, backend="eager", fullgraph=True)
    with torch.no_grad():
        assert_same(outer(x), net(x) + 1)
    with torch.no_grad():
        expected = torch.stack([net(row) for row in x])
    assert_same(torch.vmap(compiled)(x), expected)


def test_a_reset_compiles_again() -> None:
    net, x = Branchy(), torch.randn(2, 4)
    compiled = nimble_fx.compile(net, x)
    for _ in range(2):
        compiled(x)
    torch.compiler.reset()
    assert compiled.programs == ()
    assert_same(compiled(x), net(x).detach())
    assert len(compiled.programs) == len(compiled._guarded._direct) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("guards", [True, False])
def test_on_a_gpu_calls_are_on_the_callers_stream_and_may_be_captured(guards: bool) -> None:
    net, x = Branchy().cuda(), torch.randn(2, 4, device="cuda")
    compiled = nimble_fx.compile(net, x, guards=guards)
    compiled(x)
    assert [program.status.frozen for program in compiled.programs] == [True]
    side = torch.cuda.Stream()
    for _ in range(3):
        with torch.cuda.stream(side), torch.no_grad():
            x = torch.randn(2, 4, device="cuda")
            ours = compiled(x)
            assert_same(ours, net(x))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        captured = compiled(x)
    with torch.no_grad():
        net.a.weight.mul_(2)
        x.copy_(torch.randn(2, 4, device="cuda"))
        graph.replay()
        assert_same(captured, net(x))
        assert_same(compiled(x), net(x))


@pytest.mark.gpu
def test_on_a_gpu_trainings_are_eagers() -> None:
    net = Branchy().cuda()
    eager = copy.deepcopy(net)
    compiled = nimble_fx.compile(net, torch.randn(2, 4, device="cuda"), training=True)
    for _ in range(4):
        x = torch.randn(2, 4, device="cuda")
        for model, call in ((net, compiled), (eager, eager)):
            model.zero_grad()
            call(x).square().sum().backward()
            torch.optim.SGD(model.parameters(), 0.1).step()
        assert_same([p.grad for p in net.parameters()], [p.grad for p in eager.parameters()])
        assert_same(dict(net.state_dict()), dict(eager.state_dict()))
