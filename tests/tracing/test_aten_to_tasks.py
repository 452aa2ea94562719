"""The tracer finds storages, views, mutation, order and source lines of an ATen graph."""

import pytest
import torch
from torch import Tensor

from nimble_fx.errors import UnsupportedError
from nimble_fx.ir.task_graph import Ref, Task, TaskGraph
from nimble_fx.ir.types import ScalarType, TupleType
from nimble_fx.tracing.aten_to_tasks import trace
from nimble_fx.verify import verify
from tests.support.schedules import aten_graph, scheduled, traced


def graph_of(function: object, *inputs: object, functional: bool = True) -> TaskGraph:
    return traced(function, *inputs, functional=functional).graph  # type: ignore[arg-type]


def only(graph: TaskGraph, operator: str) -> Task:
    found = [task for task in graph.tasks if operator in str(task.target)]
    assert len(found) == 1, [task.name for task in found]
    return found[0]


def test_an_operator_reads_its_arguments_and_writes_memory_of_its_own() -> None:
    graph = graph_of(lambda x, y: x @ y, torch.randn(2, 3), torch.randn(3, 4))
    task = only(graph, "mm")
    assert task.reads == ("x_1", "y_1")
    assert task.writes == task.allocates == task.holds == ("mm",)
    assert str(task.type) == "f32[2, 4]"
    assert task.launches


def test_a_factory_reads_no_memory_of_the_tensor_that_it_is_like() -> None:
    def program(x: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        y = x.exp()
        return torch.zeros_like(y), torch.randint_like(y, high)

    graph = traced(program, torch.ones(2, 3), torch.tensor(4)).graph
    exp, zeros, integers = graph.tasks
    assert [each.reads for each in (exp, zeros, integers)] == [("x_1",), (), ("high_1",)]
    assert zeros.after == ()


def test_views_launch_nothing_and_lie_in_the_storage_of_their_base() -> None:
    graph = graph_of(lambda x: x.exp().view(-1).unsqueeze(0).relu(), torch.randn(2, 3))
    assert not only(graph, "aten.view").launches
    assert only(graph, "unsqueeze").holds == ("exp",)
    assert only(graph, "relu").reads == ("exp",)
    assert only(graph, "relu").after == ("exp",)


def test_an_in_place_write_comes_after_readers_and_before_later_ones() -> None:
    def program(x: Tensor) -> Tensor:
        before = x.cos()
        x.t().mul_(2)
        return before + x.sin()

    graph = graph_of(program, torch.randn(2, 3), functional=False)
    write = only(graph, "mul_")
    assert write.writes == ("x_1",)
    assert write.allocates == ()
    assert write.after == ("cos",)
    assert only(graph, "sin").after == ("mul_",)


def test_a_write_to_an_argument_by_keyword_is_one() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        return torch.sin(x, out=y).cos()

    graph = graph_of(program, torch.randn(3), torch.randn(3), functional=False)
    write = only(graph, "sin")
    assert write.target == torch.ops.aten.sin.out
    assert write.writes == write.holds == ("y_1",)
    assert write.allocates == ()
    assert only(graph, "cos").after == ("sin",)


def test_a_view_that_had_to_copy_launches_and_may_still_alias_its_base() -> None:
    gm = aten_graph(lambda x: x.view(-1).relu(), torch.randn(2, 3))
    view = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default)[0]
    view.target = torch.ops.aten.reshape.default
    view.meta["val"] = view.meta["val"].clone()
    graph = trace(gm).graph
    task, user = graph.tasks
    assert task.launches
    assert task.holds == user.reads == ("view", "x_1")
    verify(scheduled(graph), graph)


def test_items_of_a_result_have_a_storage_each() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        values, indices = x.topk(2)
        return values.relu(), indices + 1

    graph = graph_of(program, torch.randn(5))
    several = only(graph, "topk")
    assert isinstance(several.type, TupleType)
    assert several.allocates == ("topk.0", "topk.1")
    assert only(graph, "relu").reads == ("topk.0",)
    assert only(graph, "add").reads == ("topk.1",)


def test_items_of_a_split_share_the_storage_that_was_split() -> None:
    graph = graph_of(lambda x: x.exp().split(2)[1].relu(), torch.randn(4))
    assert only(graph, "relu").reads == ("exp",)
    assert only(graph, "split").launches is False


@pytest.mark.parametrize(
    "function", [torch.rand_like, torch.bernoulli, torch.nn.functional.dropout]
)
def test_random_draws_are_ordered(function: object) -> None:
    graph = graph_of(lambda x: function(x), torch.rand(3))  # type: ignore[operator]
    assert any(task.ordered for task in graph.tasks)


def test_tensors_in_the_code_are_constants() -> None:
    result = traced(lambda x: x + torch.tensor([1.0, 2.0]), torch.randn(2))
    assert [value.static for value in result.graph.constants] == [True]
    assert list(result.constants) == [value.name for value in result.graph.constants]
    assert torch.equal(next(iter(result.constants.values())), torch.tensor([1.0, 2.0]))


def test_symbolic_sizes_are_values_that_launch_nothing() -> None:
    seen: list[TaskGraph] = []

    def capture(gm: torch.fx.GraphModule, inputs: list[object]) -> object:
        seen.append(trace(gm).graph)
        return gm.forward

    from torch._dynamo.backends.common import aot_autograd

    def program(x: Tensor) -> Tensor:
        return x.reshape(-1, 2 * x.shape[1]) + x.shape[0] * x.shape[1]

    with torch.no_grad():
        torch.compile(program, backend=aot_autograd(fw_compiler=capture), dynamic=True)(
            torch.randn(4, 6)
        )
    graph = seen[0]
    sizes = [value for value in graph.values if isinstance(value.type, ScalarType)]
    assert sizes
    assert not any(isinstance(v, Task) and v.launches for v in sizes)
    assert any("s" in str(value.type) for value in sizes)


def test_the_users_line_is_kept() -> None:
    seen: list[TaskGraph] = []

    def capture(gm: torch.fx.GraphModule, inputs: list[object]) -> object:
        for node in gm.graph.nodes:
            if node.op == "call_function":
                node.target = torch.ops.aten.cos.default
        seen.append(trace(gm).graph)
        return gm.forward

    from torch._dynamo.backends.common import aot_autograd

    def program(x: Tensor) -> Tensor:
        return x.cos()  # the line

    torch.compile(program, backend=aot_autograd(fw_compiler=capture))(torch.randn(2))
    source = seen[0].tasks[0].source
    assert source is not None
    assert source.file == __file__
    assert source.code == "return x.cos()  # the line"


def test_names_and_static_inputs_are_taken_over() -> None:
    gm = aten_graph(lambda w, x: x @ w, torch.randn(3, 3), torch.randn(3, 3))
    graph = trace(gm, "Net.forward", {"w_1": "weight"}, {"w_1"}).graph
    assert graph.name == "Net.forward"
    assert [(value.name, value.static) for value in graph.inputs] == [
        ("weight", True),
        ("x_1", False),
    ]
    assert graph.tasks[0].args == (Ref("x_1"), Ref("weight"))


def test_a_higher_order_operator_is_refused_by_name() -> None:
    gm = aten_graph(torch.relu, torch.randn(2))
    node = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)[0]
    node.target = torch.ops.higher_order.cond
    with pytest.raises(UnsupportedError, match=r"relu .*cond.* higher-order"):
        trace(gm)


def test_a_graph_on_two_devices_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="second device"):
        graph_of(lambda x: x.to("meta") + 1, torch.randn(2))


def test_streams_that_the_user_placed_are_refused() -> None:
    gm = aten_graph(torch.relu, torch.randn(2))
    next(iter(gm.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default))).meta[
        "custom"
    ] = {"stream": 1}
    with pytest.raises(UnsupportedError, match="stream"):
        trace(gm)


def test_an_operator_that_swaps_memory_is_refused() -> None:
    gm = aten_graph(torch.relu, torch.randn(2))
    node = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)[0]
    node.target, node.args = torch.ops.aten.set_.source_Tensor, (node.args[0], node.args[0])
    with pytest.raises(UnsupportedError, match="replaces the storage"):
        trace(gm)


def test_a_view_lies_in_its_base_even_if_its_fake_tensor_aliases_nothing() -> None:
    gm = aten_graph(lambda x: x.exp().t().relu(), torch.randn(2, 3))
    node = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.t.default)[0]
    node.meta["val"] = node.meta["val"].clone()
    graph = trace(gm).graph
    assert not only(graph, "aten.t.").launches
    assert only(graph, "relu").reads == ("exp",)


def test_a_dropout_that_is_off_writes_memory_of_its_own() -> None:
    """Its fake kernel returns the argument; PyTorch's kernels copy it."""
    graph = graph_of(lambda x: torch.native_dropout(x, 0.5, False)[0].exp(), torch.randn(3))
    dropout = only(graph, "native_dropout")
    assert dropout.allocates == ("native_dropout.0", "native_dropout.1")
    assert only(graph, "exp").after == ("native_dropout",)


def test_what_a_backward_computes_again_has_memory_of_its_own() -> None:
    """Though its fake tensor is the forward's, which a saved view of the forward's shares."""
    gm = aten_graph(lambda x, saved: (saved.t(), x.tanh()), torch.randn(3, 3), torch.randn(3, 3))
    _, saved = gm.graph.find_nodes(op="placeholder")
    (tanh,) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.tanh.default)
    tanh.meta["val"] = saved.meta["val"].t()
    graph = trace(gm).graph
    assert only(graph, "tanh").allocates == ("tanh",)
    assert only(graph, "aten.t.").holds == ("saved_1",)


def test_batch_norm_writes_its_statistics_though_its_schema_does_not_say_so() -> None:
    def program(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        before = mean.exp()
        normal, *_ = torch.ops.aten.native_batch_norm.default(
            x, None, None, mean, var, True, 0.1, 1e-5
        )
        return normal + before

    inputs = torch.randn(2, 3), torch.zeros(3), torch.ones(3)
    graph = graph_of(program, *inputs, functional=False)
    task = only(graph, "batch_norm")
    assert {"mean_1", "var_1"} <= set(task.writes)
    assert "exp" in task.after


def test_memory_that_is_given_back_by_hand_is_refused() -> None:
    import torch._inductor.inductor_prims  # defines the operator

    gm = aten_graph(torch.relu, torch.randn(2))
    node = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)[0]
    node.target, node.args = torch.ops.inductor.resize_storage_bytes_.default, (node.args[0], 0)
    with pytest.raises(UnsupportedError, match="replaces the storage"):
        trace(gm)
