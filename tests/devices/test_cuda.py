"""The CUDA device: captured, replayed, compared with eager. Needs a GPU."""

import copy

import pytest
import torch

import nimble_fx
from nimble_fx.devices.cuda import POOL_SIZE, Cuda
from tests.models import CASES
from tests.test_backend import assert_same, call

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("freeze", [True, False])
def test_inference_is_eagers(name: str, freeze: bool) -> None:
    case = CASES[name]
    model = case.model().cuda().eval()
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend="nimble", options={"freeze": freeze})
    with torch.no_grad():
        for _ in range(4):
            ours = tuple(x.cuda() for x in case.inputs())
            theirs = copy.deepcopy(ours)
            assert_same(call(compiled, ours), call(eager, theirs))
            assert_same(ours, theirs)
            assert_same(dict(model.state_dict()), dict(eager.state_dict()))
    if freeze:
        assert all(program.status.frozen for program in nimble_fx.programs())


@pytest.mark.parametrize("name", ["googlenet", "transformer", "tables"])
def test_training_is_eagers(name: str) -> None:
    case = CASES[name]
    model = case.model().cuda().train()
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend="nimble")
    for _ in range(4):
        inputs, results = tuple(x.cuda() for x in case.inputs()), []
        for net, run in ((model, compiled), (eager, eager)):
            output = call(run, inputs)
            net.zero_grad()
            output.square().sum().backward()
            results.append((output, [p.grad for p in net.parameters()]))
            torch.optim.SGD(net.parameters(), 0.01).step()
        assert_same(*results)
        assert_same(dict(model.state_dict()), dict(eager.state_dict()))
    assert all(program.status.frozen for program in nimble_fx.programs())


def test_the_same_kernels_on_one_stream_give_the_same_bits() -> None:
    model = CASES["googlenet"].model().cuda().eval()
    x = torch.randn(2, 3, 16, 16, device="cuda")
    results = []
    for policy in ("nimble", "serial"):
        torch.compiler.reset()
        with torch.no_grad():
            compiled = torch.compile(model, backend="nimble", options={"policy": policy})
            results.append([compiled(x) for _ in range(20)])
    assert all(torch.equal(a, results[1][0]) for a in results[0])


def test_streams_are_distinct_and_shared() -> None:
    device = Cuda.get(torch.device("cuda", 0))
    assert device is Cuda.get(torch.device("cuda", 0))
    assert device.max_streams == POOL_SIZE
