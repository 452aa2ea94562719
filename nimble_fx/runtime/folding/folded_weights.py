"""Tensors computed from weights, kept from call to call until a weight changes."""

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from nimble_fx.codegen.load import load
from nimble_fx.devices import DeviceRuntime
from nimble_fx.devices.cpu import Cpu
from nimble_fx.errors import UnsupportedError
from nimble_fx.ir.scheduled_program import ScheduledProgram
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.runtime.break_even import BreakEven
from nimble_fx.runtime.folding.optimizer_steps import StepsOn
from nimble_fx.runtime.folding.packed_weights import Pack, packings
from nimble_fx.runtime.folding.weight_sample import SampledWords, WeightSample
from nimble_fx.runtime.input_types import check_weights
from nimble_fx.runtime.launch import Launcher
from nimble_fx.torch_internals.dynamo.tensor_guards import TensorGuards
from nimble_fx.torch_internals.dynamo.untraced import untraced
from nimble_fx.torch_internals.eager_mode import plain_eager_mode
from nimble_fx.torch_internals.fake_tensors import are_fake
from nimble_fx.torch_internals.storages import storage_key

MAX_SETS = 1024
"""The most sets of weights (of models that share a program) whose results are kept."""

BREAK_EVEN_CALLS = 16
"""Folding takes about as much time as this many calls gain by it."""

MAX_MODES = 4
"""The most dispatch modes of callers, such as inference mode, in which calls find the results."""

MAX_EARLY = 4
"""How many results may be dropped before they break even; see `BreakEven`."""

_CPU = Cpu()

_data_ptr = Tensor.data_ptr
_version = attrgetter("_version")


class FoldedWeights:
    """Computes tensors from weights at the first call, and again after a weight has changed.

    A weight counts as changed if its address is different or its version counter has increased: by
    an in-place operator, `load_state_dict`, or a new tensor in its place. It also counts as changed
    after a step of an optimizer that has it or shares its memory. PyTorch does not count some
    writes: BatchNorm's to its statistics in training, and those through `tensor.data`, NumPy or a
    tensor that `set_` put on the weight's memory. On a CPU values are therefore compared too: all
    of a small weight, a sample of a large one (see `WeightSample`). An uncounted write that misses
    the sample goes unnoticed. On other devices every uncounted write does, because reading values
    would wait for the device.

    If the device has CUDA graphs, the results have a memory pool of their own, and the host waits
    for the device after computing them. So calls on any stream may read them, and after they are
    dropped, their memory is not reused before all kernels that read it have finished.

    Models of one class can share a program: the results of `MAX_SETS` sets of weights are kept.

    Cost: about a microsecond a weight in each call, 2 to 100 for a large weight; and memory for the
    results, until one of their weights is freed.
    """

    def __init__(
        self,
        compute: Callable[..., Sequence[Tensor]],
        packings: Sequence[Pack | None],
        check: Callable[[Sequence[Any]], None] = lambda weights: None,
        are_guarded: bool = True,
        device: DeviceRuntime = _CPU,
        names: Sequence[str] = (),
    ) -> None:
        """Nothing is computed yet.

        Args:
            compute: takes the weights and returns the tensors.
            packings: a function that packs each of these; None for a tensor to leave unpacked.
            check: raises an error if `compute` cannot take the weights.
            are_guarded: whether PyTorch's guards notice changes of the weights' shapes, strides and
                types, such as by an assignment to `.data`; if not, each call compares these.
            device: the weights' device.
            names: the weights' names, for errors.
        """
        self._names = names
        self._compute, self._packings, self._check = compute, packings, check
        self._are_guarded, self._device = are_guarded, device
        self._lock = threading.Lock()
        self._known: dict[tuple[int, ...], _Known] = {}  # replaced as a whole, never changed
        self._break_even = BreakEven(BREAK_EVEN_CALLS, MAX_EARLY)
        self._released: _Released | None = None

    def can_be_kept(self, weights: Sequence[Tensor]) -> bool:
        """Whether changes of the weights can be noticed; inference tensors have no versions."""
        are_known = bool(self._known) or self.are_released
        return are_known or not any(map(Tensor.is_inference, weights))

    def __call__(self, weights: Sequence[Tensor]) -> Sequence[Tensor]:
        """The tensors for the current weights; computed in each call if they cannot be kept."""
        if are_fake(weights):
            self._check(weights)
            with torch.no_grad():
                return self._compute(*weights)
        if self._released is not None:
            return self._released.results_for(weights)
        known = self._find(weights)
        if known is None and any(map(Tensor.is_inference, weights)):
            self._check(weights)
            with plain_eager_mode():
                return self._compute(*weights)
        return (known or self._kept(weights)).used()

    def unless_changing(self, weights: Sequence[Tensor]) -> Sequence[Tensor] | None:
        """The same; None while weights change too often for their folded form to pay off.

        Also None for weights that cannot be kept, because PyTorch does not count their changes.
        """
        if are_fake(weights) or self._released is not None:
            return self(weights)
        known = self._find(weights)
        if known is None and not self._pays_off(weights):
            return None
        return (known or self._kept(weights)).used()

    def _pays_off(self, weights: Sequence[Tensor]) -> bool:
        """Whether to compute the results for weights that have none."""
        if any(map(Tensor.is_inference, weights)):
            return False
        versions = tuple(map(_version, weights))
        return self._break_even.pays_off((_addresses(weights), versions))

    @property
    def caller_captures(self) -> bool:
        """Whether the caller is capturing a graph, which could outlive the results."""
        return self._device.is_capturing and not self.are_released

    @property
    def are_released(self) -> bool:
        """Whether the weights are gone, so that the results are final."""
        return self._released is not None

    def release(self, weights: Sequence[Tensor], free: Sequence[int]) -> int:
        """Makes the results for the current weights final; returns how many bytes it has freed.

        Args:
            weights: the weights as they are now.
            free: the positions of the weights to empty; if there are none, it does nothing.
        """
        if not (free and self.can_be_kept(weights)):
            return 0
        kept = self._kept(weights)
        released = _Released(kept.results, kept.memory, {i: self._names[i] for i in free})
        with self._lock:
            self._known, self._released = {}, released
        nbytes = {storage_key(weights[i]): weights[i].untyped_storage().nbytes() for i in free}
        for i in free:
            weights[i].data = weights[i].data.new_empty(0)
            weights[i].zero_()  # a counted write: autograd graphs that saved it raise
        return sum(nbytes.values())

    def _find(self, weights: Sequence[Tensor]) -> "_Known | None":
        """The kept results for the current weights, if there are any."""
        known = self._known.get(_addresses(weights))
        return known if known is not None and self._is_current(known, weights) else None

    def _kept(self, weights: Sequence[Tensor]) -> "_Known":
        """The results for the current weights, computed if they are not known; keeps them."""
        self._check(weights)  # before their memory is read
        with self._device.exclusive(), self._lock:
            with plain_eager_mode():  # for later calls too
                known = self._find(weights)  # another thread may have been first
                if known is None:
                    known = _Known(weights)  # first: notices a write during the computation
                    known.results, known.memory = self._computed(weights)
                    self._keep(known)
            if not self._are_guarded:
                known.fit_in_this_mode(weights)
            return known

    def _keep(self, known: "_Known") -> None:
        """Keeps results, in place of earlier ones of the same weights, and of the oldest ones."""
        others = {k: v for k, v in self._known.items() if k != known.addresses and not v.are_freed}
        latest = dict(list(others.items())[-(MAX_SETS - 1) :])
        for dropped in self._known.keys() - latest.keys():
            self._break_even.dropped(self._known[dropped].n_calls)
        self._break_even.made((known.addresses, known.versions))
        self._known = {**latest, known.addresses: known}

    def _is_current(self, known: "_Known", weights: Sequence[Tensor]) -> bool:
        return (self._are_guarded or known.fits(weights)) and known.are_current(weights)

    def _computed(self, weights: Sequence[Tensor]) -> tuple[Sequence[Tensor], object]:
        """The packed tensors, and their memory pool, if they have one."""
        if not self._device.has_graphs:
            return self._packed(self._compute(*weights)), None
        pool, results = self._device.pool(), list[Tensor]()

        def run(streams: object) -> None:
            results.extend(self._packed(self._compute(*weights)))

        self._device.warm_up(1, run, pool)
        return results, pool

    def _packed(self, results: Sequence[Tensor]) -> Sequence[Tensor]:
        pairs = zip(results, self._packings, strict=True)
        return [pack(result) if pack else result for result, pack in pairs]


class _Known:
    """Results, and the weights that they are computed from.

    Attributes:
        results: the results; empty once the memory of one of the weights was freed.
        memory: their memory pool, if they have one.
        addresses: the weights' addresses.
        versions: their version counters.
        n_calls: how many calls have used the results.
        are_freed: whether the memory of a weight was freed, so that another tensor may have it.
    """

    results: Sequence[Tensor]
    memory: object

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._steps = StepsOn(weights)
        samples = [WeightSample(weight) for weight in weights]
        self.addresses, self.n_calls = tuple(sample.address for sample in samples), 0
        self.versions = tuple(sample.version for sample in samples)
        self._bytes = [sample.bytes for sample in samples]
        self._words = SampledWords(samples)
        self._saved_bytes = b"".join(self._bytes)
        self._saved_words = self._words.read()
        self._guards: tuple[Callable[..., bool], ...] = (TensorGuards(weights).check,)
        self.are_freed = False
        drop = partial(untraced(_drop), weakref.ref(self))
        self._storages = [weakref.ref(each.storage, drop) for each in samples]

    def used(self) -> Sequence[Tensor]:
        """The results; counts the call that uses them."""
        self.n_calls += 1
        return self.results

    def fits(self, weights: Sequence[Tensor]) -> bool:
        """Whether weights have the same shapes, strides and types."""
        return any(fits(*weights) for fits in self._guards)

    def fit_in_this_mode(self, weights: Sequence[Tensor]) -> None:
        """Lets these weights, which are the known ones, fit in the caller's dispatch mode too.

        Guards compare dispatch keys, which inference mode changes for all tensors.
        """
        if not self.fits(weights):
            self._guards = (TensorGuards(weights).check, *self._guards[: MAX_MODES - 1])

    def are_current(self, weights: Sequence[Tensor]) -> bool:
        """Whether weights with the same addresses and layouts are unchanged."""
        return (
            not (self.are_freed or self._steps.happened)
            and tuple(map(_version, weights)) == self.versions
            and b"".join(self._bytes) == self._saved_bytes
            and all(map(torch.equal, self._words.read(), self._saved_words))
        )


def _addresses(weights: Sequence[Tensor]) -> tuple[int, ...]:
    return tuple(map(_data_ptr, weights))


def _drop(known: "weakref.ref[_Known]", storage: object) -> None:
    """Drops the results when the memory of one of their weights is freed."""
    there = known()
    if there is not None:
        there.are_freed, there.results = True, ()
        there.memory = None


@dataclass(frozen=True)
class _Released:
    """Results whose weights are gone.

    Attributes:
        results: the results.
        memory: their memory pool, if they have one.
        freed: the names of the weights that are empty, by their positions.
    """

    results: Sequence[Tensor]
    memory: object
    freed: Mapping[int, str]

    def results_for(self, weights: Sequence[Tensor]) -> Sequence[Tensor]:
        """The results.

        Raises:
            UnsupportedError: a new weight has taken the place of a released one.
        """
        new = [name for i, name in self.freed.items() if weights[i].numel()]
        if new:
            raise UnsupportedError(
                f"a weight was put in the place of {', '.join(new)}, which was released, and is "
                "not read: compile the model with its new weights, or without release_weights"
            )
        return self.results


def folded_weights(
    main: TaskGraph, weights: ScheduledProgram, device: DeviceRuntime, are_guarded: bool
) -> FoldedWeights:
    """The folded weights of a program, not computed yet.

    Args:
        main: the program's graph; its last inputs are the folded weights.
        weights: the program that computes them.
        device: the device that runs it.
        are_guarded: see `FoldedWeights`.
    """
    module = load(weights.source, weights.file)
    launcher = Launcher(weights.graph, module, weights.constants, device)
    pack_each = packings(main)[-len(weights.graph.outputs) :]

    def compute(*values: Any) -> Sequence[Tensor]:
        return launcher(list(values))

    check = partial(check_weights, weights.graph.inputs, weights.parameters)
    names = [weights.parameters.get(value.name, value.name) for value in weights.graph.inputs]
    return FoldedWeights(compute, pack_each, check, are_guarded, device, names)
