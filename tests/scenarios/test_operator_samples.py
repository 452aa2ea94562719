"""PyTorch's samples of operators, a few in each run of the suite; `make fuzz` runs them all."""

from collections.abc import Callable
from itertools import islice
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from tests.fuzz import _script_of_sample
from tests.operator_samples import Totals, Way, assert_right, judge, nimble_on, run
from tests.support.samples import Sample, bad_samples, names, samples

pytestmark = pytest.mark.filterwarnings("ignore")

_N_AT_ONCE = 24
_NOT_COMPILED = ("jiterator", "nn.Lazy")


def one_of_each(start: int, step: int, gradients: bool) -> list[Sample]:
    """An early sample of every `step`-th operator that takes real numbers."""
    chosen = [name for name in names() if not name.startswith(_NOT_COMPILED)][start::step]
    found = (list(islice(samples(name, torch.float32, gradients), 3)) for name in chosen)
    return [some[-1] for some in found if some]


@pytest.mark.parametrize(
    ("device", "gradients", "start", "step"),
    [("virtual", False, 0, 48), ("virtual", True, 4, 48), ("cpu", True, 7, 96)],
)
def test_samples_of_operators_are_as_in_eager(
    device: str, gradients: bool, start: int, step: int
) -> None:
    totals, batch = Totals(), one_of_each(start, step, gradients)
    for k in range(0, len(batch), _N_AT_ONCE):
        judge(batch[k : k + _N_AT_ONCE], nimble_on(device, seed=k), gradients, totals)
    assert not totals.wrong
    assert totals.counts["right"] > max(5, 0.9 * len(batch))  # some are errors in eager


def sample(call: Callable[..., Any], *args: Any) -> Sample:
    return Sample("sample", call, args, {})


def judged_alone(one: Sample, way: Way, gradients: bool = False) -> tuple[dict[str, int], str]:
    totals = Totals()
    judge([one, one], way, gradients, totals)
    return dict(totals.counts), "".join(totals.wrong[:1])


def backend(change: Callable[[Tensor], Tensor]) -> Way:
    """One that changes all that a graph returns."""

    def compiler(gm: GraphModule, inputs: Any) -> Callable[..., Any]:
        return lambda *args: tuple(change(out) for out in gm(*args))

    return Way(cast(Any, compiler))


X = torch.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda out: out + 0.01, "not close"),
        (lambda out: out.t().contiguous().t(), "[1, 2]), eager (torch.float32, (2, 3), [3, 1])"),
        (lambda out: out.double(), "torch.float64"),
        (lambda out: out[:1], "(1, 3)"),
    ],
)
def test_other_values_strides_types_and_shapes_than_eagers_are_wrong(
    change: Callable[[Tensor], Tensor], says: str
) -> None:
    counts, wrong = judged_alone(sample(torch.sin, X), backend(change))
    assert counts == {"wrong": 2}
    assert says in wrong
    assert judged_alone(sample(torch.sin, X), backend(torch.clone)) == ({"right": 2}, "")


def test_other_gradients_and_other_writes_than_eagers_are_wrong() -> None:
    way = backend(torch.Tensor.detach)
    given = sample(torch.sin, X.clone().requires_grad_())
    assert judged_alone(given, way, gradients=True)[0] == {"wrong": 2}
    written = sample(lambda x: x.add_(1).sum(), X)
    assert judged_alone(written, nimble_on("cpu", 0))[0] == {"right": 2}
    unwritten = Way(cast(Any, lambda gm, _: lambda x: gm(x.clone())))
    assert judged_alone(written, unwritten)[0] == {"wrong": 2}


def test_an_error_of_eagers_must_be_an_error() -> None:
    bad = next(bad_samples("gather"))
    assert judged_alone(bad, nimble_on("virtual", 0))[0] == {"raises as in eager": 2}
    silent = Way(cast(Any, lambda gm, _: lambda *args: (X,)))
    assert judged_alone(sample(torch.take, X, torch.tensor([99])), silent)[0] == {"wrong": 2}


def test_samples_are_copied_with_strides_and_shared_memory() -> None:
    one = sample(torch.add, X.t(), X)
    (first, second), _ = one.arguments()
    assert first.stride() == (1, 3)
    assert first.data_ptr() == second.data_ptr() != X.data_ptr()


def test_modules_are_put_back_as_they_were() -> None:
    module = nn.BatchNorm1d(3)
    results = run([sample(module, X)], Way(n_calls=2), gradients=False)
    assert torch.equal(results[0][2][2], results[1][2][2])  # running means after each call
    assert torch.equal(module.running_mean, torch.zeros(3))  # type: ignore[arg-type]


def test_a_wrong_sample_is_said_with_the_call_that_runs_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.operator_samples.nimble_on", lambda *_: backend(torch.zeros_like))
    with pytest.raises(AssertionError) as raised:
        assert_right("sin", torch.float32, "virtual", 3, False, limit=2)
    (note,) = raised.value.__notes__
    assert note == "assert_right('sin', torch.float32, 'virtual', 3, False, 2)"
    with pytest.raises(AssertionError, match="sin 0: wrong"):
        exec(_script_of_sample(f"{raised.value!r}\n{note}"), {})
