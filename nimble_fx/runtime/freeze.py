"""When a program is captured, which of its captures a call replays, and when it runs unfrozen."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from nimble_fx.errors import StateError
from nimble_fx.fallback import Fallback, Reporter
from nimble_fx.ir.task_graph import ScalarType
from nimble_fx.runtime import gc_guard
from nimble_fx.runtime.autotuning import Autotuner, AutotuneResult
from nimble_fx.runtime.capture_checks import described
from nimble_fx.runtime.capture_status import CaptureStatus
from nimble_fx.runtime.captured_graph import CapturedGraph, OutputPolicy
from nimble_fx.runtime.graph_cache import MAX_OWNERS, PAYS_OFF, GraphCache, Key
from nimble_fx.runtime.launch import Launcher
from nimble_fx.runtime.pool_group import PoolGroup
from nimble_fx.torch_internals.counters import count_event
from nimble_fx.torch_internals.fake_tensors import are_fake

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CaptureOptions:
    """On which options a program's captures and their callers share memory.

    Attributes:
        max_graphs: how many captures are kept.
        copy_outputs: whether what the user sees is copied out of the memory of the capture.
        n_user_outputs: how many outputs the user sees, if not all: a forward saves the others.
        is_backward: whether it reads what a forward saved. Its results are gradients, which
            autograd may keep and add to: they are copied whatever the user chose.
    """

    max_graphs: int = 8
    copy_outputs: bool = True
    n_user_outputs: int | None = None
    is_backward: bool = False

    def output_policy(self, launcher: Launcher, saves_in_place: bool) -> OutputPolicy:
        """How the outputs of a capture are handed out.

        Those of a program that writes to its inputs are copied: one may come back as an input.
        """
        n_outputs = len(launcher.graph.outputs)
        n_user = n_outputs if self.n_user_outputs is None else self.n_user_outputs
        are_aliased = not (self.copy_outputs or self.is_backward or launcher.mutated_given)
        aliased = range(n_user if are_aliased else 0)
        return OutputPolicy(aliased, saved=range(n_user, n_outputs if saves_in_place else n_user))


class Frozen:
    """Runs a program from its captures, and makes them: one for each set of sizes and addresses.

    A capture is bound to the numbers among the inputs (the sizes, where they are symbolic) and to
    the addresses of the parameters. So a program that several modules share has several, each its
    own. Past `max_graphs` the one that was replayed least recently goes; when too many have gone
    before they had paid off, only what comes often is captured.

    What a forward saves for its backward stays in the memory of the capture, and the backward reads
    it there. While a backward is still to come, another capture serves the next forward, one that
    copies what it saves.
    """

    def __init__(
        self,
        launcher: Launcher,
        pool_group: PoolGroup,
        status: CaptureStatus,
        reporter: Reporter,
        options: CaptureOptions,
        autotuner: Autotuner | None = None,
    ) -> None:
        """Runs a program, captured when it is called.

        Args:
            launcher: the program by the schedule that it has until others have been timed.
            pool_group: where it runs, and with whom.
            status: of the program, which is kept up to date.
            reporter: is told of what runs slower than asked for.
            options: on which it shares memory with its callers.
            autotuner: other schedules of the same program, to be timed at its first capture.
        """
        self._boxed_call = True  # AOTAutograd's mark of the convention
        self._autotuner = autotuner
        self._launcher, self._pool_group, self._options = (
            launcher,
            pool_group,
            options,
        )
        self._status, self._reporter = status, reporter
        values = [launcher.graph.inputs[i] for i in launcher.given]
        self._numbers = [k for k, v in enumerate(values) if isinstance(v.type, ScalarType)]
        written = {*self._numbers, *launcher.mutated_given}
        self._readable = [k for k in range(len(values)) if k not in written]
        self._kept = GraphCache(pool_group, options.max_graphs, status)
        self._failed: Fallback | None = None
        reason = (
            "sizes or addresses of parameters change too often; calls whose own have come "
            f"{PAYS_OFF} times are captured, the others are not"
        )
        self._too_often = Fallback(launcher.graph.name, "unfrozen", reason)
        self._has_warned = False

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        """Replays the program on the current stream; captures it first where it must."""
        if self._launcher.device.is_capturing or are_fake(args):
            return self._launcher(args)
        if not self._pool_group.take():
            return self._launcher(args)
        try:
            return self._run(args)
        finally:
            self._pool_group.give()

    def _run(self, args: list[Any]) -> Sequence[Any]:
        """Replays the captured for the call; makes it first if there is none and may be one."""
        given, static = self._launcher.split(args)
        key = self._key(given, static)
        captured = self._kept.get(key)
        if captured is not None and captured.is_in_use:
            key = key._replace(saves_in_place=False)
            captured = self._kept.get(key)
        if captured is None:
            made = self._record(key, given, static)
            if isinstance(made, Fallback):
                return self._run_unfrozen(made, args)
            captured = made
        args.clear()
        return captured.replay(given, static)

    def _key(self, given: list[Any], static: list[Any]) -> Key:
        fixed: tuple[tuple[int, int], ...] = ()
        if self._options.is_backward:
            saved = self._pool_group.saved
            places = [(k, given[k].data_ptr()) for k in self._readable]
            fixed = tuple([place for place in places if place[1] in saved])
        numbers = tuple([given[k] for k in self._numbers]) if self._numbers else ()
        return Key(numbers, tuple([tensor.data_ptr() for tensor in static]), fixed)

    def _run_unfrozen(self, fallback: Fallback, args: list[Any]) -> Sequence[Any]:
        """Runs a call that has no captured.

        If the call fails as its capture did, that is no reason: the error is the program's own.
        """
        outputs = self._launcher(args)
        self._pool_group.leave()
        if fallback is not self._too_often:
            self._failed = fallback
        self._status.reason = fallback.reason
        self._reporter.report(fallback)
        return outputs

    def _record(self, key: Key, given: list[Any], static: list[Any]) -> CapturedGraph | Fallback:
        """A new captured, unless there must be none or making it failed."""
        if self._failed is not None:
            return self._failed
        if not self._kept.is_worth_a_capture(key):
            return self._too_often
        if self._kept.make_room(key):
            self._warn_of_eviction()
        try:
            with self._undisturbed(static):
                result = self._autotune(key, given, static)
                pool = self._pool(key, self._output_policy(key))
                captured = self._capture(self._launcher, key, given, static, pool)
        except StateError:
            raise
        except Exception as error:
            return _failure(self._launcher, error)
        self._kept.add(key, captured, given, static)
        count_event("captures")
        _log.info("%s: captured for sizes %s", self._name, key.numbers)
        if result is not None and self._autotuner is not None:
            on_result, self._autotuner = self._autotuner.on_result, None
            on_result(result)
        return captured

    def _autotune(self, key: Key, given: list[Any], static: list[Any]) -> AutotuneResult | None:
        """Decides on the schedule, if there are several and none has been timed."""
        if self._autotuner is None:
            return None
        mutated = [static[k] for k in self._launcher.mutated_static]
        result = self._autotuner.run(
            lambda each: self._capture(each, key, given, static, self._pool_group.own_pool()),
            lambda captured, n: captured.time_us(given, mutated, n),
        )
        if result is not None:
            self._launcher = self._autotuner.launchers[result.winner]
        return result

    @contextmanager
    def _undisturbed(self, static: list[Any]) -> Iterator[None]:
        """Within, nobody else launches on the device, and nothing is collected or differentiated.

        Inference tensors can be written in inference mode only, so buffers are none, for calls
        outside of it; but a program that writes to some is never called there.
        """
        inference = any(static[k].is_inference() for k in self._launcher.mutated_static)
        with (
            gc_guard.paused(),
            self._launcher.device.exclusive(),
            torch.inference_mode(inference),
            torch.no_grad(),
        ):
            yield

    def _warn_of_eviction(self) -> None:
        if not self._has_warned:
            self._reporter.warn(
                f"{self._name} is called with more sets of sizes "
                f"(max_graphs={self._options.max_graphs}) or of parameters ({MAX_OWNERS}) than "
                "graphs are kept: for each new one the graph that was used least recently is "
                "dropped. Pad inputs to a few sizes, or raise the option max_graphs"
            )
        self._has_warned = True

    def _capture(
        self, launcher: Launcher, key: Key, given: list[Any], static: list[Any], pool: Any
    ) -> CapturedGraph:
        fixed = [k for k, _ in key.fixed]
        return CapturedGraph(
            launcher, self._pool_group, given, static, fixed, self._output_policy(key), pool
        )

    def _output_policy(self, key: Key) -> OutputPolicy:
        return self._options.output_policy(self._launcher, key.saves_in_place)

    def _pool(self, key: Key, output_policy: OutputPolicy) -> Any:
        """Where a capture takes memory, so that no other overwrites what it leaves there."""
        saved = self._pool_group.pool_of(key.fixed[0][1]) if key.fixed else None
        if saved is not None:
            return saved
        leaves_something = bool(output_policy.aliased or output_policy.saved)
        return self._pool_group.own_pool() if leaves_something else self._pool_group.shared_pool()

    @property
    def _name(self) -> str:
        return self._launcher.graph.name


def _failure(launcher: Launcher, error: Exception) -> Fallback:
    """What to say of a capture that failed. It keeps no frame of it, nor the memory of these."""
    task = launcher.task_of(error)
    name, reason = launcher.graph.name, f"capture failed: {error}"
    if task is None:
        return Fallback(name, "unfrozen", reason)
    reason = f"capture failed at {described(task, str(error))}"
    return Fallback(name, "unfrozen", reason, task.name, task.source)
