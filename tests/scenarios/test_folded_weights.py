"""Models with folded weights that change."""

import re
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

import nimble_fx
from nimble_fx import compiler
from nimble_fx.runtime.folding.folded_weights import FoldedWeights
from nimble_fx.torch_internals.operators import KERNELS
from tests.support.accuracy import assert_as_accurate
from tests.support.models import CASES

FOLDED: dict[str, Any] = {"fold_weights": True}  # whatever is faster


class Convolutions(nn.Module):
    """Two convolutions with batch normalization, one of which is used by two others."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.two, self.other = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.relu(self.norm(self.one(x)))
        return y, self.other(self.two(y)) + y


CHANGES: tuple[Callable[[Convolutions], Any], ...] = (
    lambda m: m.one.weight.mul_(2),
    lambda m: m.norm.running_var.add_(1),  # type: ignore[union-attr]
    lambda m: setattr(m.two, "weight", nn.Parameter(torch.randn(4, 4, 1, 1))),
    lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}),
    lambda m: m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()}, assign=True),
    lambda m: m.train()(torch.randn(2, 3, 5, 5)) and m.eval(),
    lambda m: setattr(m.other, "bias", None),
    lambda m: m.to(torch.float64).to(torch.float32),
)


@pytest.mark.parametrize(
    "others", [{"kernels": "aten"}, {"kernels": "inductor"}, {"device": "virtual"}], ids=str
)
def test_changed_weights_are_folded_again(others: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = Convolutions().eval()
    options: dict[str, Any] = FOLDED | {"on_fallback": "error"} | others
    compiled = torch.compile(model, backend="nimble", options=options)
    with torch.no_grad():
        for change in (lambda m: m, *CHANGES):
            change(model)
            for _ in range(2):
                x = torch.randn(2, 3, 5, 5)
                assert_as_accurate(model, (x,), compiled(x))
    assert all("batch_norm" not in program.source for program in nimble_fx.programs())


@pytest.mark.parametrize("offset", [0, 8])
def test_memory_that_was_freed_is_not_read(offset: int) -> None:
    model, x = Convolutions().eval(), torch.randn(2, 3, 5, 5)
    numbers = torch.randn(offset + 108)
    model.one.weight.data = numbers[offset:].view(model.one.weight.shape)
    compiled = torch.compile(model, backend="nimble", options=FOLDED)
    memory = numbers.untyped_storage()
    nbytes = memory.nbytes()
    with torch.no_grad():
        compiled(x)
        memory.resize_(nbytes - 4)
        error = f"one.weight.* needs {nbytes} bytes .* has {nbytes - 4}"
        with pytest.raises(nimble_fx.InputError, match=error):
            compiled(x)
        memory.resize_(nbytes)
        model.one.weight.fill_(1)
        assert_as_accurate(model, (x,), compiled(x))


def test_on_a_gpu_they_are_folded_if_that_is_asked_for() -> None:
    model, x = Convolutions().eval(), torch.randn(2, 3, 5, 5)
    plan = partial(nimble_fx.plan, model, x, device="h100")
    as_they_are, folded = plan(), plan(fold_weights=True)
    assert as_they_are.scheduled.folded is None
    assert folded.scheduled.folded is not None
    targets = [str(task.target) for task in folded.graph.tasks]
    assert "aten.cudnn_convolution_relu.default" in targets
    assert not any("batch_norm" in target or "mkldnn" in target for target in targets)
    folded.verify()
    assert str(folded.kernel_choice) == str(as_they_are.kernel_choice) == ""


def test_so_they_are_on_the_virtual_device_whose_programs_can_be_saved(tmp_path: Path) -> None:
    model, x = Convolutions().eval(), torch.randn(2, 3, 5, 5)
    options: dict[str, Any] = {"device": "virtual", "policy": "nimble"}
    (as_they_are,) = nimble_fx.compile(model, x, **options).programs
    (folded,) = nimble_fx.compile(model, x, **options, **FOLDED).programs
    assert as_they_are.scheduled.folded is None
    run = nimble_fx.load(folded.save(tmp_path / "program.json")).bind(model)
    for _ in range(2):
        model.norm.bias.data.add_(1)
        assert_as_accurate(model, (x,), run(x))


def test_a_convolution_that_is_used_twice_has_one_weight() -> None:
    layer = nn.Conv2d(4, 4, 3, padding=1)
    x = torch.randn(2, 4, 6, 6)
    model = nn.Sequential(*[layer, nn.ReLU()] * 3).eval()
    plan = nimble_fx.plan(model, x, device="h100", **FOLDED)
    assert plan.scheduled.n_folded == 1
    with torch.no_grad():
        assert_as_accurate(model, (x,), [torch.compile(model, backend="nimble", options=FOLDED)(x)])
    assert nimble_fx.programs()[-1].scheduled.n_folded == 1


@pytest.mark.parametrize("name", ["googlenet", "branchy", "views"])
def test_models_compute_what_they_did(name: str) -> None:
    case = CASES[name]
    model = case.model().eval()
    compiled = torch.compile(model, backend="nimble", options=FOLDED)
    inputs = case.inputs()
    with torch.no_grad():
        assert_as_accurate(model, inputs, compiled(*inputs))


def test_the_module_shows_what_is_folded() -> None:
    model = Convolutions().eval()
    compiled = partial(nimble_fx.compile, model, torch.randn(2, 3, 5, 5))
    assert compiled(fold_weights=False).programs[0].source.count("batch_norm") == 2
    (program,) = compiled(**FOLDED).programs
    assert "batch_norm" not in program.source
    assert "p.one_weight_folded" in program.source
    assert re.search(r"4 weights of \S+ KiB, computed from the model's", program.summary())
    program.verify()


@pytest.mark.parametrize("error", [nimble_fx.ScheduleError, nimble_fx.UnsupportedError])
@pytest.mark.parametrize("fails", ["select_schedules", "folded_weights"])
def test_weights_whose_program_cannot_be_scheduled_are_not_folded(
    monkeypatch: pytest.MonkeyPatch, error: type[nimble_fx.NimbleError], fails: str
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        if fails == "folded_weights" or "(weights)" in args[0].traced.graph.name:
            raise error("it cannot be")
        return real(*args, **kwargs)

    real = getattr(compiler, fails)
    monkeypatch.setattr(compiler, fails, fail)
    model, x = Convolutions().eval(), torch.randn(2, 3, 5, 5)
    compiled = torch.compile(model, backend="nimble", options=FOLDED)
    with torch.no_grad(), pytest.warns(nimble_fx.NimbleWarning, match="without folded weights"):
        assert_as_accurate(model, (x,), compiled(x))
    assert nimble_fx.programs()[-1].scheduled.folded is None


def test_an_activation_with_a_number_that_is_computed_is_not_fused() -> None:
    convolution = nn.Conv2d(3, 4, 3).eval()

    def leaky(x: Tensor, slope: Tensor) -> Tensor:
        return nn.functional.leaky_relu(convolution(x), slope.item())

    x, slope = torch.randn(2, 3, 5, 5), torch.tensor(0.25)
    with torch._dynamo.config.patch(capture_scalar_outputs=True), torch.no_grad():
        compiled = torch.compile(
            leaky, backend="nimble", options=FOLDED | {"on_fallback": "silent"}
        )
        torch.testing.assert_close(compiled(x, slope), leaky(x, slope))


def test_inductors_kernels_run_beside_convolutions_on_folded_weights() -> None:
    model, x = Convolutions().eval(), torch.randn(2, 3, 5, 5)
    compiled = nimble_fx.compile(model, x, kernels="inductor", on_fallback="error")
    (program,) = compiled.programs
    namespaces = {getattr(task.target, "namespace", "") for task in program.graph.tasks}
    assert {KERNELS, "mkldnn"} <= namespaces
    assert "p.one_weight_folded" in program.source
    program.verify()
    assert_as_accurate(model, (x,), compiled(x))


@pytest.mark.parametrize("kernels", ["aten", "inductor"])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.ReLU6, nn.Hardtanh, nn.Hardsigmoid])
def test_activations_of_convolutions_keep_nan(activation: type[nn.Module], kernels: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), activation()).eval()
    x = torch.randn(2, 3, 6, 6)
    x[0, 0, 0, 0] = torch.nan
    compiled = nimble_fx.compile(model, x, **FOLDED, kernels=kernels, on_fallback="error")
    result = compiled(x)
    assert result.isnan().any()
    torch.testing.assert_close(result, model(x), equal_nan=True)


def test_a_saved_program_folds_the_weights_that_it_is_bound_to(tmp_path: Path) -> None:
    model, x = Convolutions().eval(), torch.randn(2, 3, 5, 5)
    (program,) = nimble_fx.compile(model, x, **FOLDED).programs
    loaded = nimble_fx.load(program.save(tmp_path / "program.json"))
    other = Convolutions().eval()
    run = loaded.bind(other)
    assert_as_accurate(other, (x,), tuple(run(x)))
    with torch.no_grad():
        other.one.weight.mul_(2)
    assert_as_accurate(other, (x,), tuple(run(x)))


def test_training_folds_nothing() -> None:
    model, x = Convolutions(), torch.randn(2, 3, 5, 5)
    programs = nimble_fx.compile(model, x, training=True).programs
    assert all("weight_folded" not in program.source for program in programs)


def test_the_virtual_device_stands_for_another_and_folds_nothing() -> None:
    model, x = Convolutions().eval(), torch.randn(2, 3, 5, 5)
    programs = nimble_fx.compile(model, x, device="virtual").programs
    assert all("weight_folded" not in program.source for program in programs)


def test_nothing_is_folded_in_a_program_that_writes_to_what_may_be_a_weight() -> None:
    model = Convolutions().eval()

    def program(x: Tensor) -> Any:
        x.mul_(2)
        return model(x.view(1, 3, 4, 3))

    copy = deepcopy(model)
    with torch.no_grad():
        compiled = torch.compile(program, backend="nimble", options=FOLDED)
        compiled(torch.ones(36))
        ours = compiled(model.one.weight.view(-1)[:36])
        copy.one.weight.view(-1)[:36].mul_(2)
        assert_as_accurate(copy, (copy.one.weight.view(-1)[:36].view(1, 3, 4, 3),), ours)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(1, 1, 3), nn.BatchNorm2d(1), nn.Conv2d(1, 5, 3)),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 1, 3), nn.ReLU()),
        nn.Sequential(nn.Conv2d(1, 5, 1), nn.ChannelShuffle(5), nn.Conv2d(5, 2, 1)),
        nn.Sequential(nn.Conv2d(1, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 4, 1)),
    ],
)
@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_results_have_eagers_strides(model: nn.Module, memory_format: torch.memory_format) -> None:
    compiled = torch.compile(model.eval(), backend="nimble", options=FOLDED)
    for n_images in (1, 2):
        x = torch.randn(n_images, 1, 7, 7).contiguous(memory_format=memory_format)
        with torch.no_grad():
            assert_as_accurate(model, (x,), compiled(x))


def test_forward_mode_differentiation_is_eagers() -> None:
    model, x = Convolutions().eval(), torch.randn(2, 3, 5, 5)
    compiled = torch.compile(model, backend="nimble", options=FOLDED)

    def tangents(function: Callable[[Tensor], tuple[Tensor, Tensor]]) -> list[Any]:
        with forward_ad.dual_level():
            results = function(forward_ad.make_dual(x, x + 1))
            return [forward_ad.unpack_dual(result).tangent for result in results]

    with torch.no_grad():
        compiled(x)
        for ours, expected in zip(tangents(compiled), tangents(model), strict=True):
            torch.testing.assert_close(ours, expected)
        assert_as_accurate(model, (x,), compiled(x))


def test_an_input_at_a_fixed_address_is_no_weight() -> None:
    model, frame = Convolutions().eval(), torch.zeros(2, 3, 100, 100)
    torch._dynamo.mark_static_address(frame)
    compiled = torch.compile(lambda: model(frame), backend="nimble", options=FOLDED)
    with torch.no_grad():
        for value in range(3):
            frame.data[:, :, 40:50, 40:50] = value
            assert_as_accurate(model, (frame,), compiled())


def test_a_bound_program_refuses_tangents_and_is_not_of_the_callers_autocast() -> None:
    model, x = Convolutions().eval(), torch.randn(2, 3, 5, 5)
    (program,) = nimble_fx.compile(model, x, **FOLDED).programs
    run = program.bind(model)
    with torch.autocast("cpu", torch.bfloat16):
        under_autocast = run(x)
    assert_as_accurate(model, (x,), tuple(under_autocast))
    assert_as_accurate(model, (x,), tuple(run(x)))
    with (
        forward_ad.dual_level(),
        pytest.raises(
            nimble_fx.InputError, match=r"a tangent, .*: compile with .* fold_weights=False"
        ),
    ):
        run(forward_ad.make_dual(x, x))


def test_weights_that_are_inference_tensors_are_not_folded_and_a_warning_says_so() -> None:
    with torch.inference_mode():
        model = Convolutions().eval()
        x = torch.randn(1, 3, 8, 8)
        compiled = torch.compile(model, backend="nimble", options=FOLDED)
        with pytest.warns(nimble_fx.NimbleWarning, match="its weights are inference tensors"):
            compiled(x)
        for parameter in model.parameters():
            parameter.mul_(2)
        assert_as_accurate(model, (x,), compiled(x))
    (fallback,) = nimble_fx.fallbacks()
    assert fallback.runs == "with PyTorch's kernels"


class OneNumber(nn.Module):
    """A buffer of many elements at one address."""

    weight: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(1).expand(200, 100))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight.exp()


def test_a_large_weight_that_is_one_number_is_folded() -> None:
    model, x = OneNumber(), torch.randn(200, 100)
    compiled = torch.compile(model, backend="nimble", options=FOLDED | {"on_fallback": "error"})
    with torch.no_grad():
        for value in (1.0, 2.0):
            model.weight[0, :1].fill_(value)
            assert_as_accurate(model, (x,), compiled(x))
    (program,) = nimble_fx.programs()
    assert program.scheduled.folded is not None


def test_models_that_share_a_program_do_not_fold_their_weights_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    models, x = [Convolutions().eval() for _ in range(3)], torch.randn(2, 3, 5, 5)
    runs = [torch.compile(model, backend="nimble", options=FOLDED) for model in models]
    with torch.no_grad():
        for run, model in zip(runs, models, strict=True):
            assert_as_accurate(model, (x,), run(x))
        assert len(nimble_fx.programs()) == 1
        monkeypatch.setattr(FoldedWeights, "_packed", None)
        for run, model in zip(runs, models, strict=True):
            assert_as_accurate(model, (x,), run(x))


def test_weights_are_folded_under_any_default_device() -> None:
    model, x = nn.Linear(512, 512, bias=False), torch.randn(4, 512)
    compiled = torch.compile(model, backend="nimble", options=FOLDED | {"on_fallback": "error"})
    with torch.no_grad(), torch.device("meta"):
        for _ in range(2):
            assert_as_accurate(model, (x,), compiled(x))
            model.weight.mul_(2)
