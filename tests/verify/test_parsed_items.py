"""Parsed emitted modules: the items of an operator's results."""

import re

import pytest
import torch
from torch import Tensor

import nimble_fx
from nimble_fx.codegen.emit import emit
from nimble_fx.errors import ScheduleError
from nimble_fx.ir.task_graph import Ref
from nimble_fx.tracing.aten_to_tasks import trace
from nimble_fx.verify import verify_source
from nimble_fx.verify.parse import parse
from tests.support.schedules import aten_graph, schedule_of, scheduled

aten = torch.ops.aten


def test_items_are_read_back_as_the_operators_results() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        values, indices = x.topk(2)
        a, b = torch._foreach_add([x, x], 1)
        return values.exp(), indices + 1, x.sort()[0].sin(), a.exp(), b.sin()

    torch.compile(program, backend="nimble")(torch.randn(4))
    text = nimble_fx.programs()[-1].source
    verify_source(text)
    tasks = parse(text).graph.tasks
    expected = {aten.topk.default: 2, aten._foreach_add.Scalar: 2, aten.sort.default: 1}
    for target, n_items in expected.items():
        (called,) = (task for task in tasks if task.target == target)
        items = [task for task in tasks if task.is_item and Ref(called.name) in task.args]
        assert [item.args[1] for item in items] == list(range(n_items))
        assert [item.frees for item in items] == [()] * (n_items - 1) + [(called.name,)]
        assert len({item.holds for item in items}) == n_items
        assert {*called.allocates}.issuperset(s for item in items for s in item.holds)


CALL = "aten.topk.default(x_1, 2)"


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (f"getitem, getitem_1, c = {CALL}", "has 2 results"),
        (f"getitem = {CALL}[2]", "has 2 results"),
        (f"getitem, getitem = {CALL}", "different names"),
        (f"getitem, *getitem_1 = {CALL}", "different names"),
        (f"getitem, p.getitem_1 = {CALL}", "different names"),
        (f"() = {CALL}", "different names"),
        (f"(getitem, b), getitem_1 = {CALL}", "different names"),
        (f"getitem, x_1 = {CALL}", "x_1 is already another value's name"),
        (f"getitem, inputs = {CALL}", "inputs is already another value's name"),
        (f"getitem, getitem_1 = c = {CALL}", "no such statement"),
        ("getitem, getitem_1 = x_1", "no such statement"),
    ],
)
def test_results_that_are_not_there_or_without_a_name_of_their_own_are_refused(
    changed: str, why: str
) -> None:
    text = emit(schedule_of(lambda x: x.topk(2)[0].exp(), torch.randn(4)))
    line = f"getitem, getitem_1 = {CALL}"
    assert line in text
    with pytest.raises(ScheduleError, match=re.escape(why)):
        verify_source(text.replace(line, changed))


def test_fewer_names_than_results_are_not_the_schedule() -> None:
    graph = schedule_of(lambda x: x.split(1)[0].exp(), torch.randn(3))
    text = emit(graph)
    assert "getitem, getitem_1, getitem_2 = " in text
    with pytest.raises(ScheduleError, match="has 3 results, for 2 names"):
        verify_source(text.replace(", getitem_2", ""), graph)


def test_a_third_result_that_nobody_reads_has_a_name_too() -> None:
    gm = aten_graph(lambda x: [part.exp() for part in x.split(1)[:2]], torch.randn(3))
    gm.graph.eliminate_dead_code()
    graph = scheduled(trace(gm, "program").graph)
    text = emit(graph)
    one_by_one = re.compile(r"split = (.*)")
    assert one_by_one.search(text)
    edited = one_by_one.sub(r"getitem, getitem_1 = \1", text)
    edited = re.sub(r" *getitem(_1)? = split\[.*\n", "", edited)
    edited = re.sub(r", split\b|split, | *del split\n", "", edited)
    with pytest.raises(ScheduleError, match="the call has 3 results, for 2 names"):
        verify_source(edited, graph)


def test_pieces_that_are_views_race_as_the_whole_does() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        left, right = torch.ops.aten.split.Tensor(x.exp(), 2)
        return left.mul_(2), right.sin()

    text = emit(schedule_of(program, torch.randn(4)))
    tasks = parse(text).graph.by_name
    (split,) = (task for task in tasks.values() if task.target == aten.split.Tensor)
    assert not split.launches
    assert tasks["getitem"].holds == tasks["getitem_1"].holds == ("exp",)


def test_items_of_a_list_are_taken_before_it_is_used_as_a_whole() -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.ops.aten._foreach_add.List([x, x], [y, y])
        return torch.ops.aten.zero_.default(both[0]), both[1] + 1

    text = emit(schedule_of(program, torch.randn(2), torch.randn(2)))
    item, whole = ("        getitem_1 = both[1]", "        whole = aten.cat.default(both)")
    named = "\n".join([r"both = \1", "        getitem = both[0]", item])
    text, n_changed = re.subn(r"getitem, getitem_1 = (.*)", named, text)
    assert n_changed == 1
    verify_source(text)
    verify_source(text.replace(item, f"{item}\n{whole}"))
    with pytest.raises(ScheduleError, match="before it is used as a whole"):
        verify_source(text.replace(item, f"{whole}\n{item}"))


def test_items_of_a_list_among_results_lie_apart() -> None:
    def lists(x: Tensor) -> tuple[list[Tensor], Tensor, list[Tensor]]:
        return [x + 1, x + 2], x.sum(), [x * 2, x * 3, x * 4]

    def program(x: Tensor) -> tuple[Tensor, ...]:
        (first, _), total, (_, second, third) = torch.ops.nimble_tests.lists(x)
        return first.sin(), total.exp(), second.relu(), third.cos()

    with torch.library._scoped_library("nimble_tests", "FRAGMENT") as library:
        library.define("lists(Tensor x) -> (Tensor[], Tensor, Tensor[])")
        library.impl("lists", lists, "CompositeExplicitAutograd")
        graph = schedule_of(program, torch.randn(2))
        verify_source(emit(graph), graph)
        tasks = parse(emit(graph)).graph.by_name
    users = [tasks[name] for name in ("sin", "exp", "relu", "cos")]
    read = [user.reads for user in users]
    assert len(set(read)) == len({user.stream for user in users}) == 4
    (called,) = (task for task in tasks.values() if "lists" in str(task.target))
    assert all({*storages} < {*called.allocates} for storages in read)


def racing(operator: str, items: str) -> str:
    """A text in which stream 0 writes to `a` while stream 1 reads `b`."""
    selected = "\n".join(f"        {line.strip()}" for line in items.split(";"))
    return f"""
import torch

aten = torch.ops.aten


def call(inputs, p, streams, e):
    x = inputs[0]
    inputs.clear()
    s0, s1 = streams
    with s0:
        r = {operator}
        e.r.record(s0)
{selected}
    with s1:
        s1.wait_event(e.r)
        u = aten.sin.default(b)
        e.u.record(s1)
    with s0:
        w = aten.mul_.Tensor(a, 3)
    s0.wait_event(e.u)
    return (w, u)


N_STREAMS = 2
EVENTS = ("r", "u")
INPUTS = ("x",)
PARAMETERS = ()
"""


@pytest.mark.parametrize(
    "items",
    [
        "l1 = r[2]; l2 = r[2]; a = l1[0]; b = l2[0]",
        "l1 = r[2]; a = l1[0]; l2 = r[2]; b = l2[0]",
        "l1 = r[2]; b = l1[0]; a = l1[0]",
    ],
)
def test_an_item_is_the_same_however_it_is_selected(items: str) -> None:
    apart = items.replace("a = l1[0]", "a = l1[1]")
    with torch.library._scoped_library("nimble_tests", "FRAGMENT") as library:
        library.define("lists(Tensor x) -> (Tensor[], Tensor, Tensor[])")
        library.impl("lists", lambda x: ([x + 1], x.sum(), [x * 2, x * 3]), "CPU")
        verify_source(racing("torch.ops.nimble_tests.lists.default(x)", apart))
        with pytest.raises(ScheduleError, match=r"race on storage r\.2\.0"):
            verify_source(racing("torch.ops.nimble_tests.lists.default(x)", items))


@pytest.mark.parametrize(
    "operator", ["chunk.default(x, 2)", "tensor_split.sections(x, 2)", "split.Tensor(x, 2)"]
)
def test_items_of_what_may_be_a_view_may_lie_in_the_whole(operator: str) -> None:
    text = racing(f"aten.{operator}", "a = r[0]").replace("sin.default(b)", "sin.default(x)")
    with pytest.raises(ScheduleError, match="race on storage x"):
        verify_source(text)
