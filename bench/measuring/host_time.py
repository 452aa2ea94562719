"""Measures the host's time of a call: replays by hand, PyTorch's ways to call, and nimble_fx's.

On a GPU the host only runs ahead of small kernels while the launch queue has room, so a round has
few calls. On a stand-in for the CUDA runtime, whose kernels do nothing, all time is the host's.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import nimble_fx
from bench.command_line.console import print_table
from bench.measuring.timing import Spread, interleaved_seconds, synchronize

N_CALLS, N_WARM_UPS, WIDTH = 50, 12, 16
SOURCE = """
class Net(nn.Module):
    def __init__(self, n_inputs, n_parameters):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(WIDTH, WIDTH, bias=i + 1 < n_parameters) for i in range(0, n_parameters, 2)
        )
    def forward(self, *xs):
        x = sum(xs)
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x
"""
UNGUARDED = "nimble_fx.compile, guards=False"
OVERWRITTEN = f"{UNGUARDED}, copy_outputs=False"
"""Its outputs are overwritten by the next call, as with `torch.cuda.make_graphed_callables`."""
BACKEND = 'backend="nimble"'
LEAST = "Dynamo, replay and copies by hand"
"""The least that a backend of `torch.compile` can do."""
CASES = ((1, 1), (1, 40), (1, 300), (1, 2000), (30, 40))
"""Numbers of inputs and of parameters."""


@dataclass(frozen=True)
class HostTime:
    """The microseconds of a call, by way of calling.

    Attributes:
        n_inputs: the number of tensors among the arguments.
        n_parameters: the number of parameters of the model.
        training: whether the backward is part of the call.
        by_way: the times of each way.
    """

    n_inputs: int
    n_parameters: int
    training: bool
    by_way: dict[str, Spread]

    @staticmethod
    def of(plain: Mapping[str, Any]) -> "HostTime":
        """The times that JSON was made from."""
        by_way = {way: Spread(**each) for way, each in plain["by_way"].items()}
        return HostTime(**{**plain, "by_way": by_way})


def is_stand_in() -> bool:
    """Whether the CUDA runtime is a stand-in (tests/cuda_runtime), so that times are the host's."""
    return "stand-in" in torch.cuda.get_device_name()


def net(n_inputs: int, n_parameters: int, training: bool) -> nn.Module:
    """A model with code of its own, because Dynamo caches by code object."""
    scope: dict[str, Any] = {"nn": nn, "torch": torch, "WIDTH": WIDTH}
    exec(SOURCE, scope)
    made: nn.Module = scope["Net"](n_inputs, n_parameters).cuda().train(training)
    made.requires_grad_(training)
    for parameter in made.parameters() if training else ():
        parameter.grad = torch.zeros_like(parameter)  # for reduce-overhead not in a graph's memory
    return made


def ways(
    make: Callable[[], nn.Module], xs: tuple[Tensor, ...], training: bool
) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The ways to call a model, by name."""
    yield "eager", make()
    if not training:
        graph, copied = _by_hand(make(), xs)
        yield "bare replay", lambda *xs: graph.replay()
        yield "replay, copies by hand", copied
        yield "Dynamo alone", torch.compile(make(), backend=_nothing)
        yield LEAST, torch.compile(make(), backend=lambda gm, inputs: _by_hand(gm, inputs)[1])
    copies = tuple(x.clone() for x in xs)
    yield "make_graphed_callables", torch.cuda.make_graphed_callables(make(), copies)
    yield "reduce-overhead", torch.compile(make(), mode="reduce-overhead")
    yield "cudagraphs", torch.compile(make(), backend="cudagraphs")
    yield BACKEND, torch.compile(make(), backend="nimble")
    yield "nimble_fx.compile", nimble_fx.compile(make(), xs, training=training)
    if not training:
        yield UNGUARDED, nimble_fx.compile(make(), xs, guards=False)
        yield OVERWRITTEN, nimble_fx.compile(make(), xs, guards=False, copy_outputs=False)


def _by_hand(
    model: Callable[..., Any], inputs: Sequence[Tensor]
) -> tuple[torch.cuda.CUDAGraph, Callable[..., Any]]:
    """A captured graph of a model, and a call that copies inputs and outputs, not parameters."""
    graph = torch.cuda.CUDAGraph()
    places = [k for k, x in enumerate(inputs) if not isinstance(x, nn.Parameter)]
    own = [x.clone() if k in places else x for k, x in enumerate(inputs)]
    model(*own)
    with torch.cuda.graph(graph):
        kept = model(*own)
    buffers = [own[k] for k in places]

    def copied(*inputs: Tensor) -> Any:
        for k, buffer in zip(places, buffers, strict=True):
            buffer.copy_(inputs[k])
        graph.replay()
        return kept.clone() if isinstance(kept, Tensor) else [each.clone() for each in kept]

    return graph, copied


def _nothing(gm: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
    """A backend whose code returns the same outputs in each call."""
    kept = gm(*inputs)
    return lambda *inputs: kept


def host_time(n_inputs: int, n_parameters: int, training: bool, rounds: int) -> HostTime:
    """Times each way in turn."""
    torch.compiler.reset()
    make = partial(net, n_inputs, n_parameters, training)
    xs = tuple(torch.randn(8, WIDTH, device="cuda") for _ in range(n_inputs))
    calls: dict[str, Callable[[], object]] = {}
    with torch.set_grad_enabled(training):
        for name, way in ways(make, xs, training):
            calls[name] = partial(_step if training else _call, way, xs)
            for _ in range(N_WARM_UPS):
                calls[name]()
            synchronize()
        seconds = interleaved_seconds(calls, rounds, N_CALLS, after_round=synchronize)
    spreads = {name: Spread.of([1e6 * s for s in each]) for name, each in seconds.items()}
    return HostTime(n_inputs, n_parameters, training, spreads)


def _call(way: Callable[..., Any], xs: tuple[Tensor, ...]) -> object:
    return way(*xs)


def _step(way: Callable[..., Any], xs: tuple[Tensor, ...]) -> None:
    way(*xs).sum().backward()


def print_host_times(times: Sequence[HostTime]) -> None:
    """A row for each way, a column for each case."""
    mark = "stand-in runtime: host time only, no GPU" if is_stand_in() else "on this GPU"
    header, rows = host_time_cells(times)
    print_table(f"the host's time of a call ({mark})", header, [rows])


def host_time_cells(times: Sequence[HostTime]) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of a table: a row for each way, a column for each case."""
    names = dict.fromkeys(name for each in times for name in each.by_way)
    header = ["us a call, median (least)", *map(_heading, times)]
    return header, [[name, *[_cell(each.by_way.get(name)) for each in times]] for name in names]


def _heading(each: HostTime) -> str:
    what = "training" if each.training else "inference"
    return f"{what}: {each.n_inputs} in, {each.n_parameters} parameters"


def _cell(spread: Spread | None) -> str:
    return "" if spread is None else f"{spread.median:.1f} ({spread.min:.1f})"
