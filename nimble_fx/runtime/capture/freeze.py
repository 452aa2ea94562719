"""Runs a program from captured graphs: captures when needed, replays, or runs it unfrozen."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from nimble_fx.errors import StateError
from nimble_fx.fallback import Fallback, Reporter
from nimble_fx.ir.types import ScalarType
from nimble_fx.runtime.capture import gc_guard
from nimble_fx.runtime.capture.autotuning import Autotuner
from nimble_fx.runtime.capture.capture_options import CaptureOptions, OutputPolicy
from nimble_fx.runtime.capture.captured_graph import CapturedGraph
from nimble_fx.runtime.capture.checks import about_task
from nimble_fx.runtime.capture.graph_cache import (
    BREAK_EVEN_CALLS,
    GraphCache,
    GraphKey,
)
from nimble_fx.runtime.capture.pool_group import PoolGroup
from nimble_fx.runtime.capture.specialized_numbers import SpecializedNumbers
from nimble_fx.runtime.capture.status import CaptureStatus
from nimble_fx.runtime.input_types import check_weights
from nimble_fx.runtime.items_at import items_at
from nimble_fx.runtime.launch import Launcher
from nimble_fx.runtime.shared_memory import SharedMemory
from nimble_fx.torch_internals.dynamo.boxed import boxed
from nimble_fx.torch_internals.dynamo.counters import count_event
from nimble_fx.torch_internals.fake_tensors import are_fake
from nimble_fx.torch_internals.forward_ad import carry_tangents, is_dual_level

_log = logging.getLogger(__name__)

_data_ptr = Tensor.data_ptr


@boxed
class FrozenProgram:
    """Runs a program from captured graphs: one for each set of sizes and addresses.

    A graph is specialized on the numbers among the inputs (such as symbolic sizes) and the
    addresses of the parameters, so modules that share a program each have graphs of their own. With
    more than `max_graphs`, the least recently used one is evicted; once too many were removed
    before they broke even, only calls that repeat often are captured.

    The tensors that a forward saves stay in its graph's memory, where the backward reads them.
    While a backward is pending, the next forward replays another graph, which copies what it saves.
    """

    def __init__(
        self,
        launcher: Launcher,
        pool_group: PoolGroup,
        status: CaptureStatus,
        reporter: Reporter,
        options: CaptureOptions,
        autotuner: Autotuner | None = None,
        names: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """A program that is captured when it is first called.

        Args:
            launcher: the program, with the schedule that it has before autotuning.
            pool_group: the memory pools and order that it shares with its forward or backward.
            status: the program's status, which it keeps up to date.
            reporter: lists fallbacks.
            options: how captured graphs and callers share memory.
            autotuner: times other schedules of the program at its first capture.
            names: the model's names of parameters and buffers, by the graph's.
        """
        self._autotuner, self._names = autotuner, names
        self._launcher, self._pool_group, self._options = launcher, pool_group, options
        self._status, self._reporter = status, reporter
        values = [launcher.graph.inputs[i] for i in launcher.inputs]
        scalars = [k for k, v in enumerate(values) if isinstance(v.type, ScalarType)]
        self._has_scalar_inputs = bool(scalars)
        self._numbers = SpecializedNumbers(launcher.graph, launcher.inputs)
        written = {*scalars, *launcher.mutated_inputs}
        self._addresses_suffice = not (self._numbers or launcher.mutated_inputs or options.saves)
        self._mutates = launcher.mutates
        n_static = len(launcher.static)
        compared = range(n_static) if launcher.mutated_inputs else launcher.mutated_static
        self._pick_compared = items_at(compared)
        positions = [*launcher.inputs, *self._pick_compared(launcher.static)]
        self._shared_memory = SharedMemory.of(launcher.graph, positions)
        self._may_be_saved = [k for k in range(len(values)) if k not in written]
        self._cache = GraphCache(pool_group, options.max_graphs, status)
        self._failed: Fallback | None = None
        reason = (
            "sizes or addresses of parameters change too often; those that were seen in "
            f"{BREAK_EVEN_CALLS} calls are captured, the others are not"
        )
        self._too_many_captures = Fallback(launcher.graph.name, "unfrozen", reason)
        reason = (
            "it writes to an input with a storage offset, and may return a view of it, to which "
            "PyTorch would give the offset of a graph's copy, because sizes are symbolic"
        )
        self._offset_is_lost = Fallback(launcher.graph.name, "unfrozen", reason)
        self._has_warned = False

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        """Replays the program on the current stream; captures it first if necessary."""
        inputs, static = self.split(args)
        if are_fake((*inputs, *static[:1])):
            return self._launcher(args)
        args.clear()
        return self.run(inputs, static)

    def split(self, args: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """Splits the arguments of a call into inputs, and parameters and buffers."""
        return self._launcher.split(args)

    def run(self, inputs: Sequence[Any], static: Sequence[Any]) -> Sequence[Any]:
        """Does the same as a call.

        Args:
            inputs: the inputs, of which none is fake, and no mode makes them so.
            static: the parameters and buffers.
        """
        if self._launcher.device.is_capturing or not self._pool_group.acquire():
            return self._launch(inputs, static)
        try:
            latest = self._cache.latest
            if (
                latest is not None
                and self._addresses_suffice
                and latest[0].static == tuple(map(_data_ptr, static))
                and (self._options.are_guarded or latest[1].fits(*static))
                and not is_dual_level()
                and not (self._mutates and self._shared(inputs, static))
            ):
                return latest[1].replay(inputs, static)
            return self._run(inputs, static)
        finally:
            self._pool_group.release()

    def _launch(self, inputs: Sequence[Any], static: Sequence[Any]) -> Sequence[Any]:
        return self._launcher(self._launcher.joined(inputs, static))

    def _shared(self, inputs: Sequence[Any], static: Sequence[Any]) -> tuple[str, str] | None:
        """The names of two arguments that share memory which the program writes; see `found`."""
        return self._shared_memory.found([*inputs, *self._pick_compared(static)])

    def _loses_offset(self, inputs: Sequence[Any]) -> bool:
        """Whether PyTorch would give a view of a written input the offset of the graph's copy.

        With symbolic sizes AOTAutograd gives a view of a written input the offset of the view that
        the program returns, which is relative to the copy. The input must therefore begin where its
        memory does, as the copy does.
        """
        return (
            self._options.returns_views_of_inputs
            and self._has_scalar_inputs
            and any(inputs[k].storage_offset() for k in self._launcher.mutated_inputs)
        )

    def _run(self, inputs: Sequence[Any], static: Sequence[Any]) -> Sequence[Any]:
        """Replays the graph for the call, after capturing it if necessary; or runs unfrozen."""
        if carry_tangents((*inputs, *static)):  # copies to the graph's buffers would drop tangents
            return self._run_unfrozen(inputs, static)
        if self._mutates and self._shared(inputs, static):
            return self._run_unfrozen(inputs, static)
        if self._loses_offset(inputs):
            return self._run_with_fallback(self._offset_is_lost, inputs, static)
        key, graph = self._find_graph(inputs, static)
        if graph is not None and graph.saved_addresses and graph.awaits_backward:
            key = key._replace(saves_in_place=False)
            graph = self._cache.get(key)
        if graph is not None and not (self._options.are_guarded or graph.fits(*static)):
            self._check_weights(static)
            graph.remember_types(static)
        if graph is None:
            if are_fake(static):
                return self._launch(inputs, static)
            if self._launcher.shared_static.found(static) is not None:
                return self._run_unfrozen(inputs, static)
            new = self._new_graph(key, inputs, static)
            if isinstance(new, Fallback):
                return self._run_with_fallback(new, inputs, static)
            graph = new
        return graph.replay(inputs, static)

    def _find_graph(
        self, inputs: Sequence[Any], static: Sequence[Any]
    ) -> tuple[GraphKey, CapturedGraph | None]:
        """The key of a call and its graph. Tries the latest graph first, which is cheaper."""
        fixed: tuple[tuple[int, int], ...] = ()
        if self._options.is_backward:
            saved = self._pool_group.saved_pools
            places = [(k, inputs[k].data_ptr()) for k in self._may_be_saved]
            fixed = tuple([place for place in places if place[1] in saved])
        parts = self._numbers.of(inputs), tuple(map(_data_ptr, static)), fixed, True
        latest = self._cache.latest
        if latest is not None and latest[0] == parts:
            return latest
        key = GraphKey(*parts)
        return key, self._cache.get(key)

    def _run_with_fallback(
        self, fallback: Fallback, inputs: Sequence[Any], static: Sequence[Any]
    ) -> Sequence[Any]:
        """Runs a call without a graph, and reports the fallback.

        A known fallback is reported first, so that nothing runs if it is an error. One of a capture
        that has just failed is reported if the call succeeds: if it fails like its capture did, the
        error is the program's own and no fallback.
        """
        is_known = fallback in (self._too_many_captures, self._offset_is_lost, self._failed)
        if is_known:
            self._report(fallback)
        outputs = self._run_unfrozen(inputs, static)
        if not is_known:
            self._failed = fallback
            self._report(fallback)
        return outputs

    def _run_unfrozen(self, inputs: Sequence[Any], static: Sequence[Any]) -> Sequence[Any]:
        with self._pool_group.turn():
            return self._launch(inputs, static)

    def _report(self, fallback: Fallback) -> None:
        self._status.reason = fallback.reason
        self._reporter.report(fallback)

    def _new_graph(
        self, key: GraphKey, inputs: Sequence[Any], static: Sequence[Any]
    ) -> CapturedGraph | Fallback:
        """Captures a graph; returns the fallback if the capture failed or is not worthwhile.

        Raises:
            InputError: parameters do not fit the program; not all calls have guards that check it.
        """
        if self._failed is not None:
            return self._failed
        if not self._cache.should_capture(key):
            return self._too_many_captures
        self._check_weights(static)
        too_many = self._cache.evict_for(key)
        if too_many is not None:
            self._warn_of_eviction(too_many)
        try:
            with self._capture_context(static):
                self._autotune(key, inputs, static)
                pool = self._pool(key, self._output_policy(key))
                graph = self._capture(self._launcher, key, inputs, static, pool)
        except StateError:
            raise
        except Exception as error:
            return _failure(self._launcher, error)
        self._cache.add(key, graph, inputs, static)
        count_event("captures")
        _log.info("%s: captured for sizes %s", self._name, key.numbers)
        return graph

    def _check_weights(self, static: Sequence[Any]) -> None:
        parameters = [self._launcher.graph.inputs[i] for i in self._launcher.static]
        check_weights(parameters, self._names, static)

    def _autotune(self, key: GraphKey, inputs: Sequence[Any], static: Sequence[Any]) -> None:
        """Autotunes over the schedules and switches to the winner, unless already done."""
        if self._autotuner is None:
            return
        mutated = [static[k] for k in self._launcher.mutated_static]
        result = self._autotuner.run(
            lambda each: self._capture(each, key, inputs, static, self._pool_group.private_pool()),
            lambda graph, n: graph.time_us(inputs, mutated, n),
        )
        if result is not None:
            self._launcher = self._autotuner.launchers[result.winner]
            on_result, self._autotuner = self._autotuner.on_result, None
            on_result(result)

    @contextmanager
    def _capture_context(self, static: Sequence[Any]) -> Iterator[None]:
        """The state for captures: device locked, garbage collector off, no gradients.

        Inference tensors can only be written in inference mode. So it is on if the program writes
        to any, and then the program is never called outside of that mode. Otherwise it is off, so
        that calls in any mode can copy inputs to the graph's buffers.
        """
        self._launcher.device.free_garbage()  # once for all schedules
        inference = any(static[k].is_inference() for k in self._launcher.mutated_static)
        with (
            gc_guard.paused(),
            self._launcher.device.exclusive(),
            torch.inference_mode(inference),
            torch.no_grad(),
        ):
            yield

    def _warn_of_eviction(self, too_many: str) -> None:
        if not self._has_warned:
            self._reporter.warn(f"{self._name} is called with more {too_many}")
        self._has_warned = True

    def _capture(
        self,
        launcher: Launcher,
        key: GraphKey,
        inputs: Sequence[Any],
        static: Sequence[Any],
        pool: Any,
    ) -> CapturedGraph:
        fixed = [k for k, _ in key.fixed]
        return CapturedGraph(
            launcher, self._pool_group, inputs, static, fixed, self._output_policy(key), pool
        )

    def _output_policy(self, key: GraphKey) -> OutputPolicy:
        return self._options.output_policy(self._launcher, key.saves_in_place)

    def _pool(self, key: GraphKey, output_policy: OutputPolicy) -> Any:
        """The pool for a capture, so that no other capture overwrites outputs that stay in it."""
        saved = self._pool_group.pool_of_saved(key.fixed[0][1]) if key.fixed else None
        if saved is not None:
            return saved
        outputs_stay = bool(output_policy.aliased or output_policy.saved)
        return self._pool_group.private_pool() if outputs_stay else self._pool_group.shared_pool()

    @property
    def _name(self) -> str:
        return self._launcher.graph.name


def _failure(launcher: Launcher, error: Exception) -> Fallback:
    """The fallback for a failed capture; keeps neither its frames nor their memory alive."""
    task = launcher.failing_task(error)
    name, reason = launcher.graph.name, f"capture failed: {error}"
    if task is None:
        return Fallback(name, "unfrozen", reason)
    reason = f"capture failed at {about_task(task, str(error))}"
    return Fallback(name, "unfrozen", reason, task.name, task.source)
