"""With `guards=False`, calls check their inputs, and use the model as it was compiled."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import nimble_fx
from nimble_fx.errors import FallbackError, InputError, NimbleWarning, OptionError
from tests.support.eager import assert_calls_are_eagers, assert_same, twins
from tests.support.models import CASES, Branchy

DEVICES: list[dict[str, Any]] = [{}, {"device": "virtual", "seed": 3}]


class Sum(nn.Module):
    """Tensors in lists and dicts, a number and a word among the arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, more: dict[str, list[Tensor]], n: int = 2, how: str = "a") -> Any:
        y = self.layer(x) + more["y"][0] * n
        return {"y": y, "all": [y.sum()]} if how == "a" else (y,)


def values() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 4), torch.randn(2, 4)


OTHERS: dict[str, tuple[Callable[[Tensor, Tensor], tuple[Any, ...]], str]] = {
    "size": (lambda x, y: (x[:1], {"y": [y]}, 3), r"'args\[0\]' size mismatch at index 0"),
    "rank": (lambda x, y: (x[0], {"y": [y]}, 3), r"'args\[0\]' rank mismatch"),
    "strides": (lambda x, y: (x.t().contiguous().t(), {"y": [y]}, 3), "stride mismatch"),
    "dtype": (lambda x, y: (x, {"y": [y.double()]}, 3), r"'args\[1\]\['y'\]\[0\]' dtype mismatch"),
    "device": (lambda x, y: (x.to("meta"), {"y": [y]}, 3), "dispatch key set .*another device"),
    "type": (lambda x, y: (nn.Parameter(x), {"y": [y]}, 3), "expected type"),
    "the same": (lambda x, y: (x, {"y": [x]}, 3), "Duplicate tensor"),
    "number": (lambda x, y: (x, {"y": [y]}, 4), r"args\[2\] is 4, not 3"),
    "type of number": (lambda x, y: (x, {"y": [y]}, 3.0), r"args\[2\] is 3\.0, not 3"),
    "more": (lambda x, y: (x, {"y": [y, y]}, 3), "the arguments are nested as"),
    "another key": (lambda x, y: (x, {"z": [y]}, 3), "the arguments are nested as"),
    "fewer": (lambda x, y: (x, {"y": [y]}), "2 positional arguments, and the example 3 positional"),
    "no tensor": (lambda x, y: (None, {"y": [y]}, 3), "expected type of 'args"),
    "a tensor": (lambda x, y: (x, {"y": [y]}, torch.tensor(3)), r"args\[2\] is a Tensor"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_inputs_unlike_the_example_are_refused_and_nothing_is_compiled(other: str) -> None:
    net = Sum()
    x, y = values()
    compiled = nimble_fx.compile(net, (x, {"y": [y]}, 3), guards=False)
    make, message = OTHERS[other]
    for _ in range(2):
        with pytest.raises(InputError, match=rf"Sum was compiled with guards=False.*{message}"):
            compiled(*make(*values()))
    x, y = values()
    assert_same(compiled(x, {"y": [y]}, 3), net(x, {"y": [y]}, 3))
    assert len(compiled.programs) == 1


@pytest.mark.parametrize("options", DEVICES, ids=str)
def test_what_the_example_shows_conjugated_or_negated_is_not_written(
    options: dict[str, Any],
) -> None:
    def program(z: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        return z.resolve_conj().add_(1), x.resolve_neg().mul_(2), torch.view_as_real(z + 1)

    first, second = (torch.randn(3, dtype=torch.complex64) for _ in range(2))
    given = first.conj(), second.conj().imag
    compiled = nimble_fx.compile(program, given, guards=False, **options)
    for _ in range(2):
        before = first.clone(), second.clone()
        assert_same([*compiled(*given)], [*program(*given)])
        assert torch.equal(first, before[0])
        assert torch.equal(second, before[1])
    with pytest.raises(InputError, match="dispatch key set mismatch"):
        compiled(first, given[1])


REPLACED: dict[str, Callable[[nn.Linear], Any]] = {
    "bias was .*\\. It is now gone": lambda net: setattr(net, "bias", None),
    "weight was .*\\. It is now .* on meta": lambda net: net.to("meta"),
    "weight was .*\\. It is now .*sparse": lambda net: setattr(
        net, "weight", nn.Parameter(net.weight.detach().to_sparse())
    ),
    "weight was .*\\. It is now UninitializedParameter": lambda net: setattr(
        net, "weight", nn.UninitializedParameter()
    ),
}


@pytest.mark.parametrize("change", REPLACED)
def test_an_error_says_what_has_changed(change: str) -> None:
    net, x = nn.Linear(4, 4), torch.randn(2, 4)
    compiled = nimble_fx.compile(net, x, guards=False, fold_weights=False)
    REPLACED[change](net)
    with pytest.raises(InputError, match=f"guards=False, when its {change}"):
        compiled(x)


def test_so_does_one_of_a_captured_program() -> None:
    net, x = nn.Linear(4, 4), torch.randn(2, 4)
    compiled = nimble_fx.compile(net, x, guards=False, device="virtual")
    net.register_parameter("bias", None)
    with pytest.raises(InputError, match=r"bias was .* It is now gone"):
        compiled(x)


def test_a_parameter_that_has_become_a_buffer_is_refused() -> None:
    net, x = nn.Linear(4, 4), torch.randn(2, 4)
    compiled = nimble_fx.compile(net, x, guards=False)
    bias = net.bias.detach()
    del net.bias
    net.register_buffer("bias", bias)
    with pytest.raises(InputError, match=r"bias was a parameter, .*\. It is now a buffer, .*again"):
        compiled(x)


def test_an_error_of_a_model_that_has_not_changed_is_its_own() -> None:
    net, x = nn.Embedding(4, 4), torch.tensor([1, 3])
    compiled = nimble_fx.compile(net, x, guards=False)
    with pytest.raises(IndexError, match="index out of range") as caught:
        compiled(x + 1)
    assert not hasattr(caught.value, "__notes__")


@pytest.mark.parametrize("name", CASES)
def test_models_are_eagers_with_all_that_they_change(name: str) -> None:
    case = CASES[name]
    net, eager = twins(case, train=False)
    with torch._dynamo.config.patch(allow_rnn=True):
        compiled = nimble_fx.compile(
            net, case.inputs(), guards=False, on_fallback="silent", device="virtual", seed=3
        )
        assert_calls_are_eagers(compiled, net, eager, case)


def test_keywords_are_compared_too() -> None:
    net, (x, y) = Sum(), values()
    compiled = nimble_fx.compile(net, {"x": x, "more": {"y": [y]}, "how": "b"}, guards=False)
    assert_same(compiled(x=y, more={"y": [x]}, how="b"), net(y, {"y": [x]}, how="b"))
    with pytest.raises(InputError, match=r"kwargs\['how'\] is 'a', not 'b'"):
        compiled(x=y, more={"y": [x]}, how="a")
    with pytest.raises(InputError, match=r"the example 0 positional .* keywords how, more, x"):
        compiled(y, {"y": [x]}, how="b")


def test_what_is_not_compared_stays_as_it_was_compiled() -> None:
    net, x = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval(), torch.randn(2, 4)
    compiled = nimble_fx.compile(net, x, guards=False)
    expected = net(x).detach()
    net.train()
    net[1] = nn.ReLU()
    assert_same(compiled(x), expected)


def test_arguments_that_the_example_does_not_have_are_refused() -> None:
    net, x = Branchy(), torch.randn(2, 4)
    compiled = nimble_fx.compile(net, x, guards=False)
    for args, kwargs in (((x, x), {}), ((), {}), ((x,), {"y": x}), ((x,), {"y": None})):
        with pytest.raises(
            InputError, match=r"the call has .*, and the example 1 positional argument\."
        ):
            compiled(*args, **kwargs)


class Accumulates(nn.Module):
    """Writes to a buffer before it reads its input."""

    def __init__(self) -> None:
        super().__init__()
        self.total: Tensor
        self.register_buffer("total", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        self.total.add_(1)
        return x * 2


def test_a_buffer_of_the_model_is_no_input() -> None:
    net, x = Accumulates(), torch.zeros(4)
    compiled = nimble_fx.compile(net, x, guards=False)
    for _ in range(2):
        with pytest.raises(InputError, match=r"args\[0\] is a parameter or buffer of it"):
            compiled(net.total)
    assert torch.equal(compiled(net.total.clone()), torch.full((4,), 2.0))
    former, net.total = id(net.total), torch.ones(4)
    others = [torch.ones(4) for _ in range(10_000)]
    again = [other for other in others if id(other) == former]
    if not again:
        pytest.skip("Python gives its address to no other tensor")
    assert torch.equal(compiled(again[0]), again[0] * 2)


def test_it_may_be_traced_or_be_part_of_another_compiled_model() -> None:
    net, x = Branchy(), torch.randn(2, 4)
    compiled = nimble_fx.compile(net, x, guards=False)
    with pytest.raises(RuntimeError, match=r"jit\.trace"):
        torch.jit.trace(lambda x: compiled(x), x)
    outer = torch.compile(lambda x: compiled(x) + 1, backend="eager", fullgraph=True)
    assert_same(outer(x), net(x).detach() + 1)


def test_other_threads_may_compile_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).eval()
    x = torch.randn(2, 3, 8, 8)
    expected = net(x).detach()
    monkeypatch.setattr(torch.compiler, "_is_compiling_flag", True)  # as another thread sets it
    assert torch.compiler.is_compiling()
    options: dict[str, Any] = {"release_weights": True, "on_fallback": "error"}
    compiled = nimble_fx.compile(net, x, guards=False, **options)
    assert torch.allclose(compiled(x), expected, atol=1e-5)


def test_a_keyword_may_have_any_name() -> None:
    x = torch.randn(2)
    compiled = nimble_fx.compile(lambda self, args: self - args, {"self": x, "args": x * 2})
    assert_same(compiled(self=x, args=x + 1), x - (x + 1))


class Broken(nn.Module):
    """Dynamo compiles two graphs of it."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2


@dataclass
class Result:
    """A result of a class."""

    y: Tensor


class Named(NamedTuple):
    """A result that is a tuple."""

    y: Tensor


@pytest.mark.parametrize("nan", [float("nan"), complex("nan"), complex(0, float("nan"))])
def test_nan_is_nan(nan: complex) -> None:
    x = torch.ones(2)
    compiled = nimble_fx.compile(lambda x, number: x * 2, (x, nan), guards=False)
    again = type(nan)(str(nan).strip("()"))
    assert_same(compiled(x, again), x * 2)
    with pytest.raises(InputError, match=r"is \(?1.*, not "):
        compiled(x, type(nan)(1))


@pytest.mark.parametrize("zero", [0.0, complex(0, 0)])
def test_zeros_of_different_signs_are_different(zero: complex) -> None:
    compiled = nimble_fx.compile(lambda x, number: x / number, (torch.ones(2), zero), guards=False)
    with pytest.raises(InputError, match=r"-0.*, not .*0"):
        compiled(torch.ones(2), type(zero)(-zero))


def test_the_order_of_keywords_does_not_matter_and_nan_is_nan() -> None:
    def program(x: Tensor, y: Tensor, scale: float) -> Tensor:
        return x - y if scale != scale else x + y

    x, y = values()
    compiled = nimble_fx.compile(program, {"x": x, "y": y, "scale": float("nan")}, guards=False)
    assert torch.equal(compiled(scale=float("nan"), y=y, x=x), x - y)


def folded(x: Tensor, **others: Tensor) -> Tensor:
    """Depends on the order of its keywords."""
    for other in others.values():
        x = x * 2 + other
    return x


def test_the_order_of_keywords_that_a_model_iterates_over_matters() -> None:
    x, y = values()
    compiled = nimble_fx.compile(folded, {"x": x, "y": y, "z": x + 1}, guards=False)
    assert torch.equal(compiled(y=y, x=x, z=x + 1), folded(x, y=y, z=x + 1))
    with pytest.raises(InputError, match=r"keywords x, z, y, and the example .* keywords x, y, z"):
        compiled(x=x, z=x + 1, y=y)


def test_a_list_is_not_taken_for_the_tensor_in_it() -> None:
    x, _ = values()
    compiled = nimble_fx.compile(lambda xs: torch.cat(xs) + 1, ([x],), guards=False)
    with pytest.raises(InputError, match="the arguments are nested as"):
        compiled(x)
    with pytest.raises(InputError, match="size mismatch"):
        compiled([x[:1]])
    assert torch.equal(compiled([x]), x + 1)


def test_what_is_returned_as_it_came_is_that_of_the_call() -> None:
    x, _ = values()
    compiled = nimble_fx.compile(lambda x, past: (x + 1, past), (x, {}), guards=False)
    past: dict[str, Tensor] = {}
    assert compiled(x, past)[1] is past


def test_a_model_that_does_more_than_to_run_a_program_is_called_with_guards_and_says_why() -> None:
    class Counts(nn.Module):
        n = 0

        def forward(self, x: Tensor) -> Tensor:
            self.n += 1
            return x + self.n

    x = torch.zeros(2)
    with pytest.warns(NimbleWarning, match=r"with guards: .* objects other than .* names .*\bn$"):
        compiled = nimble_fx.compile(Counts(), x, guards=False)
    assert [compiled(x).tolist() for _ in range(3)] == [[1, 1], [2, 2], [3, 3]]
    with pytest.raises(FallbackError, match=r"reads or changes objects .* names n \("):
        nimble_fx.compile(Counts(), x, guards=False, on_fallback="error")
    with (
        pytest.warns(NimbleWarning, match="partly in eager"),
        pytest.warns(NimbleWarning, match="with guards: it is not one graph"),
    ):
        broken = nimble_fx.compile(Broken(), x, guards=False)
    assert broken(x).tolist() == [2, 2]
    makes = "makes an object of a class, such as a dataclass"
    by_name = r"names .*\bOrderedDict\b"  # PyTorch 2.11 calls the class
    for cls, reason in ((Result, makes), (OrderedDict, f"{makes}|{by_name}")):
        with pytest.raises(FallbackError, match=reason):
            nimble_fx.compile(lambda x, cls=cls: cls(y=x + 1), x, guards=False, on_fallback="error")
    named = nimble_fx.compile(lambda x: Named(x + 1), x, guards=False, on_fallback="error")
    assert torch.equal(named(x).y, x + 1)
    sized = torch.zeros(3)
    torch._dynamo.mark_dynamic(sized, 0)
    with pytest.raises(FallbackError, match="sizes or strides of its inputs are dynamic"):
        nimble_fx.compile(torch.sin, sized, guards=False, on_fallback="error")
    with pytest.raises(FallbackError, match=r"args\[0\] is passed twice, as args\[1\] too"):
        nimble_fx.compile(torch.add, (x, x), guards=False, on_fallback="error")
    net = Accumulates()
    with pytest.raises(FallbackError, match=r"args\[0\] is a parameter or buffer of it"):
        nimble_fx.compile(net, (net.total,), guards=False, on_fallback="error")
    with pytest.raises(FallbackError, match=r"args\[1\] is a set"):
        nimble_fx.compile(lambda x, y: x + len(y), (x, {1}), guards=False, on_fallback="error")


def test_it_is_an_option_of_inference() -> None:
    with pytest.raises(OptionError, match="guards=False is for inference"):
        nimble_fx.compile(Branchy(), torch.randn(2, 4), training=True, guards=False)
    with pytest.raises(OptionError, match="guards=0 is not valid"):
        nimble_fx.compile(Branchy(), torch.randn(2, 4), guards=0)  # type: ignore[arg-type]
