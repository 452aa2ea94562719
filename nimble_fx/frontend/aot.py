"""`nimble_fx.compile(model, example_inputs)`: compiles and captures ahead of the first call."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn.parameter import is_lazy

from nimble_fx.backend import reset
from nimble_fx.compiler import Compiler, lower
from nimble_fx.errors import NimbleError, OptionError, UnsupportedError
from nimble_fx.fallback import Fallback, Reporter
from nimble_fx.frontend.calls.guarded_call import GuardedCalls
from nimble_fx.frontend.calls.unguarded_call import UnguardedCall
from nimble_fx.frontend.graph_breaks import GraphBreaks
from nimble_fx.frontend.models.as_callable import as_callable
from nimble_fx.frontend.models.example_run import check_call, check_training, run_example
from nimble_fx.frontend.models.model_function import (
    Arguments,
    name_of,
    unique_function,
)
from nimble_fx.frontend.models.own_source import OwnSource
from nimble_fx.frontend.models.preserve_state import preserve_state
from nimble_fx.ir.display import plural
from nimble_fx.options import Options, require_bool
from nimble_fx.program import Program, register
from nimble_fx.this_machine import ThisMachine
from nimble_fx.torch_internals.dynamo.bookkeeping import reads_user_objects
from nimble_fx.torch_internals.dynamo.caches import drop_compiled, reset_with_dynamo
from nimble_fx.torch_internals.dynamo.untraced import when_freed
from nimble_fx.torch_internals.names import FakeTensor
from nimble_fx.weak_list import WeakList


def compile(  # noqa: A001  # as torch.compile
    model: object,
    example_inputs: object,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    training: bool = False,
    guards: bool = True,
    release_weights: bool = False,
    **options: Any,
) -> "Compiled":
    """Traces, schedules, verifies and captures the model now, for inputs like the example.

    This calls the model once on copies of the example inputs, with a backward in training, and then
    restores parameters, buffers, gradients, attributes, random number generators and the inputs,
    even if it raises; for a function, those in its defaults, its closure and the globals that it
    names; see `reachable_state`. No other thread may use the model meanwhile.

    Args:
        model: a `torch.nn.Module` in the mode (`train` or `eval`) that it will be called in, a
            function, a `torch.export.ExportedProgram` or a `torch.jit.ScriptModule`.
        example_inputs: a tensor (the only argument), a tuple or list (positional arguments) or a
            dict (keyword arguments). If the only argument is a list or dict, pass `([...],)`.
        example_kwargs: keyword arguments beside positional ones.
        training: False compiles for inference: every call runs without gradients. True also
            compiles the backward, and calls follow the caller's grad mode.
        guards: True: each call checks, as with torch.compile, that everything the compiled code
            depends on is unchanged, and compiles again if not. False, for inference: each call only
            checks that its inputs are like the example's. Values of parameters and buffers may
            change, and they may be replaced by tensors of the same shape, strides and type; changes
            of its modules, mode and attributes, and of its code's variables, go unnoticed.
        release_weights: True, with `guards=False`: frees the weights that the program reads only
            in folded form. They are empty in the model afterwards: do not call the model any more
            (some PyTorch operators crash on empty weights), and save it before.
        **options: the options of `torch.compile(options={...})`; see `nimble_fx.options.Options`.

    Returns:
        A callable that takes the model's arguments. Other shapes compile again, as with
        torch.compile, and so does `torch.inference_mode()`: compile in the mode that you call in.

    Raises:
        OptionError: an option or the example inputs are not valid (raised before any work), or the
            model does not take them or has no gradient in training.
        FallbackError: with `on_fallback="error"`, if there would be a fallback.

    Cost: compile time, a copy of parameters and buffers in host memory, and one of the inputs.
    """
    check_training(training)
    _check_guards(guards, training, release_weights)
    parsed = _parsed(options, release_weights)
    arguments = Arguments.parse(example_inputs, example_kwargs)
    function = as_callable(model, arguments)
    _check_has_data(function, arguments)
    compiled = Compiled(function, parsed, training, guards)
    compiled._run_example(arguments)
    compiled._report_graph_breaks()
    if not guards:
        compiled._drop_guards(arguments)
    if release_weights:
        compiled._release_weights(arguments)
    return compiled


class Compiled:
    """A compiled model, as `nimble_fx.compile` returns it.

    Attributes:
        model: the module or function that is called; for an exported or scripted model, the module
            made from it, which has the parameters.
        training: whether its backward was compiled, and calls follow the caller's grad mode.

    Compiled code and captured graphs are freed with this object. After a graph break, Dynamo caches
    the rest with the model's own functions, as with torch.compile.
    """

    def __init__(
        self, model: Callable[..., Any], options: Options, training: bool, guards: bool
    ) -> None:
        self.model, self.training = model, training
        self._reporter = Reporter(options.on_fallback)
        self._break_reporter = Reporter(options.on_fallback)  # each warns of its first fallback
        self._backend = _Backend(options, OwnSource(model), guards)
        function = unique_function(model)
        through_dynamo = torch.compile(function, backend=self._backend)
        self._guarded = GuardedCalls(name_of(model), function, through_dynamo)
        self._backend.calls = weakref.ref(self._guarded)
        self._run: Callable[[tuple[Any, ...], dict[str, Any]], Any] = self._guarded
        self._unguarded: UnguardedCall | None = None
        when_freed(self, drop_compiled, function.__code__, self._backend)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Calls the model; without gradients unless it is compiled for training."""
        if self.training or not torch.is_grad_enabled():
            return self._run(args, kwargs)
        with torch.no_grad():
            return self._run(args, kwargs)

    def _run_example(self, example: Arguments) -> None:
        """Calls the model once on copies of the arguments, and leaves it as it was.

        Raises:
            OptionError: the model does not take the arguments.
        """
        with preserve_state(self.model, example):
            try:
                run_example(self, example.copies(), self.training)
            except NimbleError:
                raise
            except Exception:
                check_call(self.model, example.copies())
                raise

    def _drop_guards(self, example: Arguments) -> None:
        """Makes calls check only their inputs, or reports why that is not possible."""
        try:
            with torch.no_grad():
                self._unguarded = UnguardedCall(self.model, self._guarded, example)
            self._run = self._unguarded.call
        except UnsupportedError as error:
            self._reporter.report(Fallback(name_of(self.model), "with guards", str(error)))

    def _release_weights(self, example: Arguments) -> None:
        """Frees weights that are folded, or reports why none are."""
        if self._unguarded is None:
            return  # `_drop_guards` has reported it
        try:
            with torch.no_grad():
                self._unguarded.release_weights(example)
        except UnsupportedError as error:
            self._reporter.report(Fallback(name_of(self.model), "with all its weights", str(error)))

    def _report_graph_breaks(self) -> None:
        is_whole = self._guarded.latest is not None
        fallback = self._backend.breaks.fallback(name_of(self.model), is_whole)
        if fallback is not None:
            self._break_reporter.report(fallback)

    @property
    def programs(self) -> tuple[Program, ...]:
        """The programs compiled for this object, oldest first.

        Calls with other shapes add programs. `torch.compiler.reset()` empties the list, and the
        next call compiles again; with `guards=False` calls go on with what they have.
        """
        return self._backend.programs.all()

    def __getattr__(self, name: str) -> NoReturn:
        """Says where the model's attributes are.

        Raises:
            AttributeError: always; Python only calls this for attributes that do not exist.
        """
        hint = "; the model is its attribute .model" if name in dir(nn.Module) else ""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    def __repr__(self) -> str:
        purpose = "training" if self.training else "inference"
        lines = [f"  {program!r}" for program in self.programs]
        head = f"<nimble_fx.compile {name_of(self.model)} for {purpose}"
        return "\n".join([f"{head}: {plural(len(lines), 'program')}", *lines]) + ">"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuses to be pickled or copied.

        Raises:
            UnsupportedError: always.
        """
        name = name_of(self.model)
        raise UnsupportedError(
            f"a compiled {name} cannot be pickled or copied: it holds code and captures of this "
            "process. Pickle or copy its .model, and call nimble_fx.compile on that"
        )


class _Backend:
    """The backend of one `Compiled`; lists the programs compiled for it."""

    def __init__(self, options: Options, own_source: OwnSource, has_guards: bool) -> None:
        self.__name__ = "nimble"  # its name in PyTorch's logs
        self.programs = WeakList[Program]()
        self.breaks = GraphBreaks()
        self.calls: Callable[[], GuardedCalls | None] = lambda: None
        self._options, self._own_source, self._has_guards = options, own_source, has_guards

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        reset_with_dynamo(self)
        self.breaks.add_graph(gm)
        calls = self.calls()
        if calls is not None:
            calls.reads_user_objects |= reads_user_objects(gm)
        target = ThisMachine(self._options, self._add_program)
        compiler = Compiler(gm, self._options, target, self._own_source, self._has_guards)
        return lower(gm, example_inputs, compiler)

    def reset(self) -> None:
        """Empties the lists of programs; `torch.compiler.reset()` calls this."""
        self.programs.clear()
        calls = self.calls()
        if calls is not None:
            calls.clear()
        reset()

    def _add_program(self, program: Program) -> None:
        self.programs.add(program)
        register(program)


def _parsed(options: Mapping[str, Any], release_weights: bool) -> Options:
    """The options; with `release_weights`, weights are folded even if that is not faster."""
    keywords = ("example_kwargs", "training", "guards", "release_weights")
    parsed = Options.parse(None, options, keywords)
    is_decided = parsed.fold_weights != "auto" or not release_weights
    return parsed if is_decided else replace(parsed, fold_weights=True)


def _check_guards(guards: object, training: bool, release_weights: object) -> None:
    """Raises OptionError if an argument is not a bool, or they contradict each other."""
    require_bool("guards", guards)
    require_bool("release_weights", release_weights)
    if training and not guards:
        raise OptionError("guards=False is for inference; training is always compiled with guards")
    if release_weights and guards:
        raise OptionError("release_weights=True needs guards=False: guards look at the weights")


def _check_has_data(function: Callable[..., Any], arguments: Arguments) -> None:
    named: dict[str, Tensor] = {}
    if isinstance(function, nn.Module):
        named = {**dict(function.named_parameters()), **dict(function.named_buffers())}
    lazy = [name for name, value in named.items() if is_lazy(value)]
    if lazy:
        raise OptionError(
            f"{name_of(function)} has parameters or buffers without a shape ({', '.join(lazy)}): "
            "call it once before nimble_fx.compile"
        )
    tensors = [*named.values(), *arguments.tensors]
    if any(value.is_meta or isinstance(value, FakeTensor) for value in tensors):
        raise OptionError(
            f"{name_of(function)} has parameters, buffers or inputs without data (on the device "
            "'meta', or fake): nimble_fx.compile runs it; nimble_fx.plan does not, and takes them"
        )
