"""Rows 22 to 38: the values that a replay computes. See tests/failure_modes/test_index.py."""

import gc
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import nimble_fx
from nimble_fx.errors import NimbleWarning, UnsupportedError
from nimble_fx.runtime.capture.graph_cache import EARLY_EVICTIONS_PER_GRAPH
from nimble_fx.tracing.aten_to_tasks import trace
from tests.support.bits import assert_same_bits, assert_same_sharing
from tests.support.eager import assert_inference_is_eagers, assert_training_is_eagers, twins
from tests.support.models import CASES, Branchy, Inception
from tests.support.replaying import ReplayingDevice
from tests.support.schedules import aten_graph
from tests.support.source_lines import VIRTUAL, on_virtual, the_fallback


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("nonzero", lambda x: x.nonzero() + 1),
        ("index", lambda x: x[x > 0] + 1),
        ("_unique2", lambda x: torch.unique(x) + 1),
        ("_local_scalar_dense", lambda x: x * x.sum().int().item()),
    ],
)
def test_22_sizes_and_numbers_that_depend_on_data_run_unfrozen_with_the_users_line(
    name: str, function: Callable[[Tensor], Tensor], device: ReplayingDevice
) -> None:
    x = torch.tensor([-1.0, 2.0, 3.0])
    settings = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
    compiled = torch.compile(function, backend="nimble")
    with torch.no_grad(), torch._dynamo.config.patch(settings):
        with pytest.warns(NimbleWarning, match=rf"runs unfrozen: .*{name}.*test_values.py:\d+"):
            assert torch.equal(compiled(x), function(x))
        assert torch.equal(compiled(-x), function(-x))
    the_fallback(name, node=name, code="lambda x")
    assert device.n_captures == 0


@pytest.mark.gpu
def test_23_a_custom_operator_that_synchronizes_is_found_in_the_capture() -> None:
    def program(x: Tensor) -> Tensor:
        return torch.ops.nimble_tests.waits(x + 1).exp()

    with torch.library._scoped_library("nimble_tests", "FRAGMENT") as library:
        library.define("waits(Tensor x) -> Tensor")
        library.impl("waits", lambda x: x * x.sum().item(), "CUDA")
        library.impl("waits", torch.empty_like, "Meta")
        compiled, x = torch.compile(program, backend="nimble"), torch.randn(3, device="cuda")
        with torch.no_grad():
            with pytest.warns(
                NimbleWarning, match=r"(?s)runs unfrozen: .*waits.*test_values.py:\d+"
            ):
                first = compiled(x)
            torch.testing.assert_close((first, compiled(x)), (program(x), program(x)))
        the_fallback("captur", node="waits", code="torch.ops.nimble_tests.waits(x + 1)")


def test_24_random_numbers_are_drawn_in_program_order_and_replays_draw_others() -> None:
    model, eager = twins(CASES["dropout"], train=True)
    compiled, (x,) = on_virtual(model), CASES["dropout"].inputs()
    with torch.no_grad():
        for net in (compiled, eager):
            torch.manual_seed(3)
            results = [net(x) for _ in range(4)]
            assert len({result.sum().item() for result in results}) == 4
            if net is compiled:
                ours = results
    assert_same_bits(ours, results)


def test_25_warm_ups_do_not_apply_a_mutation_twice() -> None:
    for name in ("cache", "googlenet"):
        model, eager = twins(CASES[name], train=name == "googlenet")
        inputs = CASES[name].inputs()
        with torch.no_grad():
            on_virtual(model)(*inputs)
            eager(*inputs)
        torch.testing.assert_close(dict(model.state_dict()), dict(eager.state_dict()))


def test_26_an_input_that_is_mutated_is_written_back() -> None:
    assert_inference_is_eagers(CASES["mutates"], VIRTUAL)


def test_27_parameters_that_move_are_seen(device: ReplayingDevice) -> None:
    model, eager = Branchy(), Branchy()
    compiled, x = torch.compile(model, backend="nimble"), torch.randn(2, 4)
    with torch.no_grad():
        compiled(x)
        model.load_state_dict(eager.state_dict(), assign=True)
        assert_same_bits(compiled(x), eager(x))
        model.a.weight.data = torch.ones(4, 4)
        eager.a.weight.data = torch.ones(4, 4)
        assert_same_bits(compiled(x), eager(x))
    assert device.n_captures == 3


def test_28_weights_loaded_in_place_are_seen_without_another_capture(
    device: ReplayingDevice,
) -> None:
    model, eager = Branchy(), Branchy()
    compiled, x = torch.compile(model, backend="nimble"), torch.randn(2, 4)
    with torch.no_grad():
        compiled(x)
        model.load_state_dict(eager.state_dict())
        assert_same_bits(compiled(x), eager(x))
    assert device.n_captures == 1


def test_29_nothing_that_follows_from_weights_is_folded(device: ReplayingDevice) -> None:
    weight, offset = torch.randn(4, 4), torch.randn(4)

    def program(x: Tensor) -> Tensor:
        return x @ (weight * 2).t() + offset.exp()

    compiled, x = torch.compile(program, backend="nimble"), torch.randn(2, 4)
    for _ in range(3):
        assert_same_bits(compiled(x), program(x))
        weight.add_(1)
        offset.mul_(2)
    (one,) = nimble_fx.programs()
    assert {"mul", "exp"} <= set(one.graph.by_name)


def test_30_the_caller_may_drop_an_input(device: ReplayingDevice) -> None:
    model = Branchy()
    compiled = torch.compile(model, backend="nimble")
    with torch.no_grad():
        compiled(torch.randn(2, 4))
        gc.collect()
        x = torch.randn(2, 4)
        assert_same_bits(compiled(x.clone()), model(x))


def test_31_a_replay_does_not_overwrite_outputs_that_the_caller_kept() -> None:
    model = Inception().eval()
    compiled, inputs = on_virtual(model), [torch.randn(1, 8, 6, 6) for _ in range(4)]
    with torch.no_grad():
        kept = [compiled(x) for x in inputs]
        torch.testing.assert_close(kept, [model(x) for x in inputs])


def test_32_outputs_that_alias_repeat_or_are_no_tensors() -> None:
    model, eager = twins(CASES["views"], train=False)
    compiled, inputs = on_virtual(model), CASES["views"].inputs()
    with torch.no_grad():
        for _ in range(2):
            ours, expected = compiled(*inputs), eager(*inputs)
            assert_same_bits(ours, expected)
            assert_same_sharing(ours[:5], expected[:5])


@torch.library.custom_op("nimble_failure_modes::times", mutates_args=())
def times(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * y


@times.register_fake
def _(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_33_somebody_elses_operator_on_tensors_of_two_devices_runs_as_traced() -> None:
    compiled = torch.compile(lambda x, y: times(x, y), backend="nimble")
    x, y = torch.empty(2, device="meta"), torch.tensor(2.0)
    with torch.no_grad():
        with pytest.warns(NimbleWarning, match="runs as traced.*second device"):
            assert compiled(x, y).shape == (2,)
        assert compiled(x, y).device == x.device
    the_fallback("second device", node="arg")


def test_34_each_of_a_few_shapes_has_a_graph(device: ReplayingDevice) -> None:
    compiled = torch.compile(Branchy(), backend="nimble", dynamic=True)
    with torch.no_grad():
        for rows in (2, 3, 2, 3):
            compiled(torch.randn(rows, 4))
    assert device.n_captures == 2


def test_34_of_new_shapes_all_the_time_a_few_are_kept_and_then_calls_run_unfrozen(
    device: ReplayingDevice,
) -> None:
    model, options = Branchy(), dict[str, Any](max_graphs=2)
    compiled = torch.compile(model, backend="nimble", dynamic=True, options=options)
    warned = []
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NimbleWarning)
        for rows in range(2, 14):
            x = torch.randn(rows, 4)
            assert_same_bits(compiled(x), model(x))
            warned += [(rows, str(w.message)) for w in caught]
            caught.clear()
    (third, evicted), (last, unfrozen) = warned
    n_captures = 2 + EARLY_EVICTIONS_PER_GRAPH * 2  # those in the cache, and early evictions
    assert (third, last) == (4, 2 + n_captures)
    assert "the least recently used graph is evicted" in evicted
    assert "runs unfrozen" in unfrozen
    the_fallback("change too often")
    assert device.n_captures == n_captures


def test_35_two_forwards_before_a_backward_retain_graph_and_accumulation() -> None:
    model, eager = twins(CASES["googlenet"], train=True)
    runs: list[tuple[Any, Callable[..., Any]]] = [(model, on_virtual(model)), (eager, eager)]
    inputs = [torch.randn(2, 3, 16, 16) for _ in range(2)]
    for _, run in runs:
        losses = [run(x).square().sum() for x in inputs]
        losses[0].backward(retain_graph=True)
        losses[1].backward()
        losses[0].backward()
    ours, expected = ([p.grad for p in net.parameters()] for net, _ in runs)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
    assert_training_is_eagers(CASES["branchy"], options=VIRTUAL)


def test_36_streams_that_the_user_wrote_run_as_traced() -> None:
    gm = aten_graph(torch.relu, torch.randn(2))
    node = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)[0]
    node.meta["custom"] = {"stream": 1}
    with pytest.raises(UnsupportedError, match="stream that the model chose itself") as error:
        trace(gm)
    assert error.value.node == node.name


def on_side_stream(x: Tensor, side: Any) -> Tensor:
    y = x.exp()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        z = y.sin() * 2
    torch.cuda.current_stream().wait_stream(side)
    return (y + 1).relu() + z


def waiting_only(x: Tensor, side: Any) -> Tensor:
    y = x.exp()
    torch.cuda.current_stream().wait_stream(side)
    return y + 1


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (on_side_stream, r"sin .* runs on a stream that the model chose itself .*z = y.sin\(\)"),
        (waiting_only, r"control_deps orders streams that the model chose itself"),
    ],
)
def test_36_streams_of_the_model_that_pytorch_traces(
    program: Callable[..., Tensor], reason: str
) -> None:
    if program is waiting_only and torch.__version__ < "2.13":
        pytest.skip("PyTorch drops the wait from the graph")
    side, x = torch.cuda.Stream(), torch.randn(40, device="cuda")
    compiled = torch.compile(lambda x: program(x, side), backend="nimble")
    with torch.no_grad():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", NimbleWarning)
            results = [compiled(x) for _ in range(3)]
        torch.cuda.synchronize()
        torch.testing.assert_close(results, [program(x, side)] * 3)
    assert [w for w in caught if re.search(reason, str(w.message))]


def test_37_collectives_run_as_traced() -> None:
    gm = aten_graph(torch.relu, torch.randn(2))
    node = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)[0]
    node.target = torch.ops._c10d_functional.all_reduce.default
    collective = "collective, which all ranks must launch in one order"
    with pytest.raises(UnsupportedError, match=collective) as error:
        trace(gm)
    assert error.value.node == node.name


def test_38_conditional_operators_run_as_traced_with_the_users_line() -> None:
    def program(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    x = torch.ones(3)
    with pytest.warns(NimbleWarning, match=r"cond.* higher-order.*test_values.py:\d+"):
        assert_same_bits(on_virtual(program)(x), x + 1)
    the_fallback("higher-order", node="cond", code="torch.cond(")
