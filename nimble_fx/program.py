"""What a user looks at: a compiled program's graph, source and state, and the list of them."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from torch import Tensor, nn

from nimble_fx import serialization
from nimble_fx.codegen.emit import emit
from nimble_fx.codegen.load import file_name
from nimble_fx.codegen.load import load as load_module
from nimble_fx.devices import DeviceRuntime, device_named
from nimble_fx.devices.specs import Device
from nimble_fx.errors import FileError, ScheduleError, UnsupportedError
from nimble_fx.fallback import Reporter
from nimble_fx.ir.display import plural
from nimble_fx.ir.symbolic_sizes import Sizes
from nimble_fx.ir.task_graph import TaskGraph
from nimble_fx.registry import Living
from nimble_fx.runtime.autotuning import Autotuner, AutotuneResult
from nimble_fx.runtime.bound_program import BoundProgram
from nimble_fx.runtime.capture_checks import nothing_to_freeze, refuse_what_cannot_be_captured
from nimble_fx.runtime.capture_status import CaptureStatus
from nimble_fx.runtime.freeze import CaptureOptions, Frozen
from nimble_fx.runtime.launch import Launcher
from nimble_fx.runtime.pool_group import Boxed, PoolGroup
from nimble_fx.selection.candidate import Candidate, candidate_table
from nimble_fx.verify import verify, verify_source, verify_structure

N_SHOWN = 3
"""So many inputs are candidate_table where one line must do."""


@dataclass(frozen=True)
class Version:
    """One schedule of a program.

    Attributes:
        graph, source, path, file: as of a `Program`.
    """

    graph: TaskGraph
    source: str
    path: Path | None
    file: str


@dataclass(eq=False)
class Program:
    """A compiled program: one forward, backward or inference graph of a model.

    With `policy="auto"` on a GPU its schedule (`graph`, `source`, `path`, `file`) is the one that
    is predicted to be best, until the first capture has timed several; then it is the fastest.

    Attributes:
        graph: the scheduled task graph.
        source: the text of the emitted module.
        path: where the text was written; None if it is in memory only.
        file: what tracebacks call the module.
        device: the device that it runs on.
        status: whether it is frozen, and if not, why.
        hardware: what the device is, such as a GPU's name; "" for any of that name.
        constants: the values of the graph's constants by name.
        parameters: what the model calls parameters and buffers, by the graph's names:
            "layers.0.weight" by "layers_0_weight".
        sizes: what the symbols among the sizes of its inputs were in the call that it was compiled
            for.
        specs: what it was planned for; None of a program from a file.
        candidates: the schedules that "auto" had to choose from, the best by prediction first; none
            with another policy, nor of a program from a file.
        contenders: those of them that are still to be timed, when it is first captured.
        settled: is told which of them has won.
    """

    graph: TaskGraph
    source: str
    path: Path | None
    file: str
    device: str
    status: CaptureStatus
    hardware: str = ""
    constants: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    parameters: Mapping[str, str] = field(default_factory=dict, repr=False)
    sizes: Sizes = field(default_factory=dict, repr=False)
    specs: Device | None = field(default=None, repr=False)
    candidates: tuple[Candidate, ...] = ()
    contenders: tuple[Version, ...] = field(default=(), repr=False)
    settled: Callable[[tuple[TaskGraph, str]], None] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """What the user would call it, such as "Branchy.forward"."""
        return self.graph.name

    def verify(self) -> None:
        """Proves the schedule legal again, and that the source is that schedule.

        Raises:
            ScheduleError: it is not.
        """
        verify(self.graph)
        verify_source(self.source, self.graph)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes a file that `nimble_fx.load` makes the program from, without tracing again.

        The file is JSON; it has the graph, the constants and the emitted text, and no parameters.
        The same program gives the same file.

        Args:
            path: the file, which is written whole or not at all; its directories are made.

        Raises:
            FileError: it cannot be written, or something in the program has no form in a file.
        """
        target = Path(path).expanduser().absolute()
        serialization.write(target, serialization.encode(self.stored()))
        return target

    def stored(self) -> serialization.Stored:
        """What a file holds of it."""
        return serialization.Stored(
            graph=self.graph,
            source=self.source,
            constants=self.constants,
            parameters=self.parameters,
            device=self.device,
            hardware=self.hardware,
            sizes=self.sizes,
        )

    def bind(self, parameters: nn.Module | Mapping[str, Tensor]) -> BoundProgram:
        """A callable that runs the program with these parameters, frozen where the device can.

        A call takes the graph's other inputs in order (`graph.inputs` that are not static, nor a
        size of one that is) and returns a list of its outputs. It is what runs inside of a compiled
        model: the graph as PyTorch traced it, for inputs of its types, without guards, gradients
        and pytrees. What a forward graph returns for its backward graph is returned too.

        Args:
            parameters: a module, or tensors, by the model's names or those of the graph.

        Raises:
            InputError: a parameter is missing or is not what the program was made for; from a
                call, the same of an input.
        """
        device = _device(self.device)
        anew = replace(self, status=CaptureStatus(reason=self.status.reason))
        run = anew.runner(device, PoolGroup(device), Reporter(), CaptureOptions())
        return BoundProgram(self.graph, self.parameters, parameters, run, anew.status)

    def runner(
        self,
        device: DeviceRuntime,
        pool_group: PoolGroup,
        reporter: Reporter,
        capture_options: CaptureOptions,
    ) -> Boxed:
        """The loaded module on a device, frozen where that is possible and wanted."""
        launchers = [self._launcher(version, device) for version in self.contenders]
        launcher = launchers[0] if launchers else self._launcher(self.version, device)
        if self.status.reason is not None:
            return pool_group.unfrozen(launcher) if capture_options.is_backward else launcher
        autotuner = (
            Autotuner(launchers, partial(self._decided, self.contenders))
            if len(launchers) > 1
            else None
        )
        return Frozen(launcher, pool_group, self.status, reporter, capture_options, autotuner)

    @property
    def version(self) -> Version:
        """The schedule that it has now."""
        return Version(self.graph, self.source, self.path, self.file)

    def _launcher(self, version: Version, device: DeviceRuntime) -> Launcher:
        loaded = load_module(version.source, version.file)
        return Launcher(version.graph, loaded, self.constants, device)

    def _decided(self, contenders: Sequence[Version], result: AutotuneResult) -> None:
        """Takes over the schedule that has won, and what each took."""
        winner, times = result.winner, result.times
        won, self.contenders = contenders[winner], ()
        self.graph, self.source, self.path, self.file = won.graph, won.source, won.path, won.file
        measured = (*times, *[None] * (len(self.candidates) - len(times)))
        self.candidates = tuple(
            replace(each, measured_us=us, chosen=i == winner)
            for i, (each, us) in enumerate(zip(self.candidates, measured, strict=True))
        )
        if self.settled is not None:
            self.settled((won.graph, won.source))

    def summary(self) -> str:
        """One screen: tasks, streams, waits, frees, where it runs, why it is not frozen."""
        graph = self.graph
        frees = sum(len(task.frees) for task in graph.tasks)
        rows = {
            "inputs": _inputs(graph),
            "tasks": f"{len(graph.launching)} launched, {len(graph.tasks)} in all",
            "streams": _streams(graph),
            "waits": f"{graph.n_waits} of {graph.n_edges} orders between tasks",
            "forks": f"{len(graph.forks)} from stream 0, {len(graph.joins)} joined to it",
            "frees": f"{frees} values before the end",
            "runs on": self.device,
            "frozen": _frozen(self.status),
            "memory": _memory(self.status),
            "module": str(self.path or self.file),
            "passes": "\n           ".join(graph.provenance),
        }
        lines = [f"  {key:9}{text}" for key, text in rows.items() if text]
        lines += (
            [f"  {line}" for line in candidate_table(self.candidates)] if self.candidates else []
        )
        return "\n".join([graph.name, *lines])

    def __repr__(self) -> str:
        streams = plural(self.graph.n_streams, "stream")
        return f"<Program {self.name} of {_inputs(self.graph)}: {streams}, {self.device}>"


def _inputs(graph: TaskGraph) -> str:
    """What a call is given beside parameters and buffers: "x f32[2, 4], n s0"."""
    given = [f"{value.name} {value.type}" for value in graph.inputs if not value.static]
    more = [f"{len(given) - N_SHOWN} more"] if len(given) > N_SHOWN else []
    return ", ".join([*given[:N_SHOWN], *more]) or "nothing but parameters"


def _streams(graph: TaskGraph) -> str:
    first = "" if graph.urgent is None else f"; stream {graph.urgent} is urgent"
    return f"{graph.n_streams} (width {graph.width}{first})"


def _frozen(status: CaptureStatus) -> str:
    if not status.frozen:
        gone = "the parameters that it was captured with are gone"
        return f"no: {status.reason or (gone if status.n_captures else 'not called yet')}"
    graphs = f"yes, {plural(status.n_graphs, 'graph')}"
    return f"{graphs}; no more: {status.reason}" if status.reason else graphs


def _memory(status: CaptureStatus) -> str:
    """What the graphs own, by stream."""
    if not status.frozen:
        return ""
    by_stream = sorted(enumerate(status.nbytes), key=lambda pair: -pair[1])
    most = ", ".join(f"s{i} {_size(nbytes)}" for i, nbytes in by_stream[:4])
    more = ", ..." if len(by_stream) > 4 else ""
    return f"{_size(sum(status.nbytes))} ({most}{more}), workspaces of libraries included"


def _size(nbytes: int) -> str:
    kib = nbytes / 2**10
    return f"{kib:.0f} KiB" if kib < 100 else f"{kib / 2**10:.1f} MiB"


def load(path: str | os.PathLike[str], *, trust_source: bool = False) -> Program:
    """The program of a file that `Program.save` wrote, proved legal again.

    Nothing in the file is run: the graph is read, its operators are asked whether they do what it
    says, it is proved, and written out afresh.

    Args:
        path: the file.
        trust_source: whether you know who wrote it. Then the text in the file runs, edited as it
            may be, if it is proved to be the graph's schedule; and operators outside of PyTorch's
            own may be called.

    Raises:
        FileError: it is not a program file, was written by other versions or for another device,
            needs an operator that is not here, says of a value's type or memory what is not so, or
            does not prove legal.
    """
    file = Path(path).expanduser().absolute()
    try:
        stored = serialization.decode(serialization.read(file))
        if not trust_source:
            serialization.check_harmless(stored.graph)
        return _loaded(stored, trust_source)
    except (FileError, ScheduleError) as error:
        raise FileError(f"{file}: {error}") from error


def _loaded(stored: serialization.Stored, trust_source: bool) -> Program:
    graph = stored.graph
    verify_structure(graph)
    serialization.check_claims(graph, stored.sizes)
    verify(graph)
    source = stored.source if trust_source else emit(graph)
    verify_source(source, graph)
    return Program(
        graph=graph,
        source=source,
        path=None,
        file=f"<nimble_fx {file_name(graph.name, source)}>",
        device=stored.device,
        status=CaptureStatus(reason=_why_not_freeze(graph, _device(stored.device))),
        hardware=stored.hardware,
        constants=stored.constants,
        parameters=stored.parameters,
        sizes=stored.sizes,
    )


def _why_not_freeze(graph: TaskGraph, device: DeviceRuntime) -> str | None:
    try:
        refuse_what_cannot_be_captured(graph, device)
    except UnsupportedError as error:
        return str(error)
    return nothing_to_freeze(graph, device)


def _device(name: str) -> DeviceRuntime:
    device = device_named(name)
    if device is None:
        raise UnsupportedError(
            f"this machine has no device {name}: save the program and load it on one that has"
        )
    return device


_programs: Living[Program] = Living()


def programs() -> tuple[Program, ...]:
    """The programs that were compiled in this process and can still run, oldest first.

    `torch.compiler.reset()` empties the list.
    """
    return _programs.all()


def register(program: Program) -> None:
    """Adds a program to the list, which does not keep it alive."""
    _programs.add(program)


def clear() -> None:
    """Empties the list. Compiled models keep working."""
    _programs.clear()
