"""Results and inputs that are read conjugated or negated are so in each replay."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.support.eager import assert_same
from tests.support.replaying import ReplayingDevice, frozen


def test_a_conjugate_comes_before_what_it_is_the_conjugate_of(device: ReplayingDevice) -> None:
    def program(z: Tensor) -> tuple[Tensor, Tensor]:
        twice = z * 2
        return twice.conj(), twice

    for z in (torch.randn(3, dtype=torch.complex64), torch.randn(3, dtype=torch.complex64)):
        ours, expected = frozen(program, z, device=device)([z]), program(z)
        assert_same(list(ours), list(expected))
        assert ours[0].is_conj()


def conjugates(z: Tensor) -> tuple[Tensor, ...]:
    twice = z * 2
    return twice, twice.conj(), twice.conj().imag, torch.view_as_real(twice), z.conj()


@pytest.mark.parametrize("step", [1, -1])
def test_outputs_that_are_read_conjugated_or_negated_stay_so(
    step: int, device: ReplayingDevice
) -> None:
    def program(z: Tensor) -> tuple[Tensor, ...]:
        return conjugates(z)[::step]

    for z in (torch.randn(3, dtype=torch.complex64), torch.randn(3, dtype=torch.complex64)):
        ours = frozen(program, z, device=device)([z])
        for one, expected in zip(ours, program(z), strict=True):
            assert torch.equal(one, expected)
            assert (one.is_conj(), one.is_neg()) == (expected.is_conj(), expected.is_neg())


def test_inputs_that_are_read_conjugated_or_negated_are_handed_back_so(
    device: ReplayingDevice,
) -> None:
    run = frozen(
        lambda z: (z * 2, z[1:], z.conj()), torch.zeros(3, dtype=torch.complex64), device=device
    )
    negated = frozen(lambda x: (x * 2, x[1:]), torch.zeros(3), device=device)
    for _ in range(2):
        z = torch.randn(3, dtype=torch.complex64).conj()
        assert_same(list(run([z])), [z * 2, z[1:], z.conj()])
        assert_same(list(negated([z.imag])), [z.imag * 2, z.imag[1:]])


def parts_of(z: Tensor) -> tuple[Tensor, ...]:
    return z.real + 1, z.resolve_conj() * 3, z, z.conj(), z[1:].conj().imag


def negated(x: Tensor) -> tuple[Tensor, ...]:
    return x * 2, x.resolve_neg() + 1, x, x[1:]


@pytest.mark.parametrize(
    ("program", "lazily"), [(parts_of, torch.conj), (negated, lambda z: z.conj().imag)]
)
def test_what_was_compiled_for_a_conjugated_or_negated_input_reads_one(
    program: Callable[[Tensor], tuple[Tensor, ...]],
    lazily: Callable[[Tensor], Tensor],
    device: ReplayingDevice,
) -> None:
    compiled = torch.compile(program, backend="nimble")
    for _ in range(3):
        x = lazily(torch.randn(3, dtype=torch.complex64))
        ours, expected = compiled(x), program(x)
        assert_same(list(ours), list(expected))
        for one, other in zip(ours, expected, strict=True):
            assert (one.is_conj(), one.is_neg()) == (other.is_conj(), other.is_neg())


def test_gradients_through_conjugates_are_eagers(device: ReplayingDevice) -> None:
    def power(x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x)
        return (spectrum.conj() * spectrum).real

    x = torch.randn(8, requires_grad=True)
    compiled = torch.compile(power, backend="nimble")
    gradients: list[Tensor | None] = []
    for run in (compiled, compiled, power):
        x.grad = None
        run(x).sum().backward()
        gradients.append(x.grad)
    assert_same(gradients[:2], [gradients[2]] * 2)
    assert device.n_captures == 2


@pytest.mark.parametrize("lazily", [torch.conj, lambda z: z.conj().imag])
def test_an_input_that_is_read_conjugated_or_negated_is_written_to(
    lazily: Callable[[Tensor], Tensor], device: ReplayingDevice
) -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        return x.mul_(2) + y.mul_(3)

    compiled = torch.compile(program, backend="nimble")
    for _ in range(2):
        numbers = [torch.randn(3, dtype=torch.complex64) for _ in range(2)]
        ours, expected = ([lazily(z.clone()) for z in numbers] for _ in range(2))
        assert_same([compiled(*ours), ours], [program(*expected), expected])
