"""For any history of compiled models on CUDA, results are eager's and all memory is returned.

Beside what `tests.scenarios.test_life` has happen to a model: streams that do not wait for each
other, the user's own captures, a cache that is written in place, faults, too little memory, models
that share a program and come and go. Nothing waits for the device until results are looked at.
"""

import copy
import gc
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test
from torch import Tensor, nn

from nimble_fx.torch_internals.names import clear_cublas_workspaces
from tests.scenarios.test_life import SEEDS, SHAPES, Life, many_programs
from tests.support.models import Cache

pytestmark = pytest.mark.gpu

MODELS = st.integers(0, 1)
STREAMS = st.integers(0, 2)
OPTIONS = st.sampled_from([{}, {}, {"max_graphs": 1}, {"policy": "nimble", "freeze": False}])


class FaultError(Exception):
    """What `passes` raises."""


class Passes:
    """The operator `nimble_lives::passes`, which copies; it raises in the call that is next.

    Attributes:
        fails_in: after how many more calls that is; None for never.
    """

    fails_in: ClassVar[int | None] = None

    @classmethod
    def compute(cls, x: Tensor) -> Tensor:
        if cls.fails_in is not None:
            cls.fails_in -= 1
            if cls.fails_in < 0:
                cls.fails_in = None
                raise FaultError
        return x.clone()


@torch.library.custom_op("nimble_lives::passes", mutates_args=())
def passes(x: torch.Tensor) -> torch.Tensor:
    return Passes.compute(x)


@passes.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Branches(nn.Module):
    """Two branches without state, and outputs that share memory with each other and the input."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        left = torch.relu(self.left(passes(x + 1)))
        right = torch.tanh(torch.sigmoid(self.right(x)) * 2)
        both = left + right
        return both, both[0], x[1:], left


def run(net: nn.Module, *inputs: Tensor) -> Any:
    return net(*inputs)


class LifeOnCuda(Life):
    """The life of one model that trains, of one with a cache, and of two that share a program."""

    device: ClassVar[str] = "cuda"
    dynamic: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.memory = memory()

    @initialize(seed=SEEDS, options=OPTIONS)
    def begin(self, seed: int, options: dict[str, Any]) -> None:
        self.options = {"policy": "nimble", "on_fallback": "silent", **options}  # type: ignore[misc]
        super().begin(seed)
        self.unseen: list[Callable[[], None]] = []
        self.users_captures: list[tuple[Any, Tensor, Any, int]] = []
        self.frozen, self.aliasing = (
            torch.compile(run, backend="nimble", dynamic=True, options=each)
            for each in (self.options, {**self.options, "copy_outputs": False})
        )
        self.nets: list[nn.Module] = [Branches().cuda() for _ in range(2)]
        self.cache: nn.Module = Cache().cuda()
        self.eager_cache = copy.deepcopy(self.cache)
        self.streams = [torch.cuda.Stream() for _ in range(3)]
        torch.cuda.synchronize()

    @rule(calls=st.lists(st.tuples(STREAMS, MODELS, SHAPES, SEEDS), min_size=2, max_size=6))
    def call_on_streams_that_do_not_wait_for_each_other(
        self, calls: list[tuple[int, int, int, int]]
    ) -> None:
        for stream, which, rows, seed in calls:
            with torch.no_grad(), torch.cuda.stream(self.streams[stream]):
                x, _ = self.inputs(rows, seed)
                ours, expected = self.frozen(self.nets[which], x), run(self.nets[which], x)
                for outputs in (ours, expected):
                    outputs[0].add_(1)  # the second is a view of it
            self.kept.append((ours, expected))

    @rule(stream=STREAMS, rows=SHAPES, seed=SEEDS)
    def train_step_on_a_stream(self, stream: int, rows: int, seed: int) -> None:
        side, here = self.streams[stream], torch.cuda.current_stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            self.train_step(rows, seed)
        here.wait_stream(side)

    @rule(calls=st.lists(st.tuples(MODELS, SHAPES), unique=True, min_size=2), seed=SEEDS)
    def call_for_outputs_that_only_calls_like_it_overwrite(
        self, calls: list[tuple[int, int]], seed: int
    ) -> None:
        pairs = [(self.nets[which], self.inputs(rows, seed)[0]) for which, rows in calls]
        with torch.no_grad():
            for _ in range(2):
                outputs = [self.aliasing(net, x) for net, x in pairs]
            self.expect(
                [[y.clone() for y in each] for each in outputs],
                [list(run(net, x)) for net, x in pairs],
            )

    @rule(place=st.integers(0, 7), seed=SEEDS)
    def write_to_the_cache(self, place: int, seed: int) -> None:
        x = self.inputs(3, seed)[0].view(3, 1, 4)
        position = torch.full((1,), place, device="cuda")
        with torch.no_grad():
            ours = self.frozen(self.cache, x, position)
            self.expect(ours, self.eager_cache(x, position))

    @rule(rows=SHAPES, seed=SEEDS, which=MODELS)
    def capture_as_the_user(self, rows: int, seed: int, which: int) -> None:
        (x, _), graph = self.inputs(rows, seed), torch.cuda.CUDAGraph()
        with torch.no_grad():
            self.frozen(self.nets[which], x)  # compiles it
            with torch.cuda.graph(graph):
                outputs = self.frozen(self.nets[which], x)
        self.users_captures.append((graph, x, outputs, which))

    @precondition(lambda self: self.users_captures)
    @rule(seed=SEEDS)
    def replay_as_the_user(self, seed: int) -> None:
        graph, x, outputs, which = self.users_captures[-1]
        with torch.no_grad():
            x.copy_(self.inputs(len(x), seed)[0])
            graph.replay()
            self.expect([y.clone() for y in outputs], list(run(self.nets[which], x.clone())))

    @rule(rows=SHAPES, seed=SEEDS, which=MODELS, fails_in=st.integers(0, 5))
    def fail(self, rows: int, seed: int, which: int, fails_in: int) -> None:
        Passes.fails_in = fails_in
        self.call_that_may_fail(FaultError, rows, seed, which)
        Passes.fails_in = None

    @rule(rows=SHAPES, seed=SEEDS, which=MODELS)
    def run_out_of_memory(self, rows: int, seed: int, which: int) -> None:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / total)
        self.call_that_may_fail(torch.OutOfMemoryError, rows, seed, which)
        torch.cuda.set_per_process_memory_fraction(1.0)

    @rule(which=MODELS, seed=SEEDS)
    def replace_a_model(self, which: int, seed: int) -> None:
        """Its graphs go with its weights, which nothing reads any more."""
        self.users_captures = [each for each in self.users_captures if each[-1] != which]
        torch.cuda.synchronize()
        torch.manual_seed(seed)
        self.nets[which] = Branches().cuda()
        torch.cuda.synchronize()

    @rule(which=MODELS, factor=st.sampled_from([0.5, -1.0]))
    def change_weights_of_a_model_in_place(self, which: int, factor: float) -> None:
        torch.cuda.synchronize()
        with torch.no_grad():
            for parameter in self.nets[which].parameters():
                parameter.mul_(factor)
        torch.cuda.synchronize()

    @rule()
    def look(self) -> None:
        """Waits for the device, and compares what there is."""
        torch.cuda.synchronize()
        for compare in self.unseen:
            compare()
        self.unseen.clear()
        super().kept_outputs_are_as_they_were()
        super().state_is_eagers()
        torch.testing.assert_close(self.cache.state_dict(), self.eager_cache.state_dict())

    def call_that_may_fail(self, error: type[Exception], rows: int, seed: int, which: int) -> None:
        x, _ = self.inputs(rows, seed)
        with torch.no_grad():
            try:
                ours = self.frozen(self.nets[which], x)
            except error:
                return
        torch.cuda.set_per_process_memory_fraction(1.0)
        Passes.fails_in = None
        with torch.no_grad():
            self.kept.append((ours, run(self.nets[which], x)))

    def expect(
        self, ours: Any, expected: Any, rtol: float | None = None, atol: float | None = None
    ) -> None:
        self.unseen.append(partial(super().expect, ours, expected, rtol, atol))

    def kept_outputs_are_as_they_were(self) -> None:
        """No invariant: see `look`."""

    def state_is_eagers(self) -> None:
        """No invariant: see `look`."""

    def call_that_fails_in_a_kernel(self) -> None:
        """No rule: on a GPU it ends the process's use of it."""

    def call_that_fails_in_the_trace(self) -> None:
        """No rule: Dynamo keeps the tensors of a trace that failed."""

    def teardown(self) -> None:
        if hasattr(self, "nets"):
            self.look()
        vars(self).update(dict.fromkeys(vars(self).keys() - {"memory"}))
        assert memory() == self.memory


def memory() -> tuple[int, int]:
    """The bytes that are allocated and reserved once nothing compiled is left."""
    torch.compiler.reset()
    gc.collect()
    torch.cuda.synchronize()
    clear_cublas_workspaces()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


def test_any_life_on_cuda_is_eagers_and_gives_its_memory_back() -> None:
    budget = settings(max_examples=10, stateful_step_count=15, phases=[Phase.generate])
    with many_programs():
        run_state_machine_as_test(LifeOnCuda, settings=budget)
