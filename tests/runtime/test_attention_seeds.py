"""The seeds of an attention's dropout are on the device where its backward reads them."""

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.runtime.attention_seeds import SEEDS

NAMES = ["philox_seed", "philox_offset"]


@pytest.mark.parametrize("operator", SEEDS, ids=str)
def test_positions_are_those_of_pytorchs_arguments(operator: torch._ops.OpOverload) -> None:
    assert [each.name for each in operator._schema.arguments[SEEDS[operator]]] == NAMES


def test_no_other_attention_of_this_name_takes_seeds() -> None:
    schemas = torch._C._jit_get_all_schemas()
    takes = [s for s in schemas if set(NAMES) <= {each.name for each in s.arguments}]
    efficient = {s.name for s in takes if "efficient" in s.name}
    assert efficient == {operator._schema.name for operator in SEEDS}


@torch.library.custom_op("nimble_test::dropped", mutates_args=())
def dropped(x: Tensor) -> tuple[Tensor, Tensor]:
    """As PyTorch's attention: the seed is where the capture, or the host, will read it."""
    device = x.device if torch.cuda.is_current_stream_capturing() else "cpu"
    return x * 2, torch.full((), 3, device=device)


@torch.library.custom_op("nimble_test::dropped_backward", mutates_args=())
def dropped_backward(grad: Tensor, seed: Tensor) -> Tensor:
    """A seed that is elsewhere ends the process in PyTorch's own."""
    if seed.is_cuda != torch.cuda.is_current_stream_capturing():
        raise ValueError(f"the seed is on {seed.device}")
    return grad * seed


@dropped.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty((), dtype=torch.int64, device=x.device)


@dropped_backward.register_fake
def _(grad: Tensor, seed: Tensor) -> Tensor:
    return torch.empty_like(grad)


dropped.register_autograd(
    lambda ctx, grad, _: dropped_backward(grad, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output[1]),
)


class Dropped(nn.Module):
    """Two branches, so that an unfrozen forward records the caller's stream on what it returns."""

    def forward(self, x: Tensor) -> Tensor:
        return dropped(x)[0].sin() + x.cos()


@pytest.mark.gpu
@pytest.mark.parametrize("frozen", ["both", "forward", "backward", "none"])
def test_a_backward_has_its_seeds_where_it_reads_them(
    frozen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = torch.ops.nimble_test.dropped_backward.default
    monkeypatch.setitem(SEEDS, operator, slice(1, 2))

    def why_not(graph: TaskGraph, *_: object) -> str | None:
        is_backward = any(task.target is operator for task in graph.tasks)
        is_frozen = frozen == "both" or frozen == ("backward" if is_backward else "forward")
        return None if is_frozen else "the test says so"

    monkeypatch.setattr("nimble_fx.this_machine.why_not_captured", why_not)
    compiled = torch.compile(Dropped(), backend="nimble", options={"policy": "nimble"})
    for _ in range(3):
        x = torch.rand(4, device="cuda", requires_grad=True)
        compiled(x).sum().backward()
        expected = torch.full_like(x, 3) * (2 * x).cos() - x.sin()
        torch.testing.assert_close(x.grad, expected.detach())
    program_of = {"training" in p.name: p for p in nimble_fx.programs()}
    assert program_of[True].status.frozen == (frozen in ("both", "forward"))
    assert program_of[False].status.frozen == (frozen in ("both", "backward"))
