"""`nimble_fx.compile(model, example_inputs)`: compiles and captures ahead of the first call."""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import nn
from torch.fx import GraphModule
from torch.nn.parameter import is_lazy

from nimble_fx.backend import reset
from nimble_fx.compiler import Compiler, lower
from nimble_fx.errors import InputError, NimbleError, OptionError, UnsupportedError
from nimble_fx.fallback import Fallback, Reporter
from nimble_fx.frontend.direct_call import DirectCall, NotDirectError, Observed
from nimble_fx.frontend.example_run import check_call, check_training, run_example
from nimble_fx.frontend.model_function import (
    Arguments,
    argument_names,
    as_callable,
    name_of,
    unique_function,
)
from nimble_fx.frontend.preserve_state import modules_of, preserve_state
from nimble_fx.ir.display import plural
from nimble_fx.options import Options
from nimble_fx.program import Program, register
from nimble_fx.this_machine import this_machine
from nimble_fx.torch_internals.dynamo import hooks_guarded, why_not_alone
from nimble_fx.torch_internals.dynamo_caches import drop_compiled
from nimble_fx.torch_internals.names import global_module_hooks, set_grad_enabled


def compile(  # noqa: A001  # as torch.compile
    model: object,
    example_inputs: object,
    *,
    training: bool = False,
    dynamic: bool = False,
    **options: Any,
) -> "Compiled":
    """Traces, schedules, verifies and captures the model now, for inputs like the example.

    A call then checks its arguments and the model, and runs the program: neither Dynamo nor the
    model's Python code runs. See `Compiled` for what it notices.

    This calls the model once on copies of the example inputs, and in training runs a backward.
    Afterwards, also when this raises, the state is what it was: parameters, buffers, gradients,
    attributes, random number generators and the example inputs. For a function this covers the
    modules and tensors in its closure and the globals that it names. No other thread may use the
    model meanwhile.

    Args:
        model: a `torch.nn.Module` in the mode (`train` or `eval`) that it will be called in, a
            function, a `torch.export.ExportedProgram` or a `torch.jit.ScriptModule`.
        example_inputs: a tensor: the one argument; a tuple or list: positional arguments; a dict:
            keyword arguments. A model whose one argument is a list or dict takes `([...],)`.
        training: False: for inference, and every call runs without gradients. True: with the
            backward, and calls follow the caller's grad mode. It is an argument, and not read from
            the grad mode, because that is on by default: inference would silently keep the tensors
            that a backward needs.
        dynamic: False: a call with other arguments than the example's is an InputError, and so is
            one of a model that has changed. True: such a call goes through Dynamo's guards, as with
            torch.compile, and compiles again where it must.
        **options: those of `torch.compile(options={...})`; see `nimble_fx.options.Options`.

    Returns:
        A callable that takes the model's arguments. It compiles again in
        `torch.inference_mode()`: compile in the mode that you call in.

    Raises:
        OptionError: before any work, if an option is not valid or the example inputs are no
            arguments; later, if the model does not take them, or if no output has a gradient with
            `training=True`.
        UnsupportedError: with `on_fallback="error"`, if a part cannot be scheduled or frozen.

    Cost: one compile, a copy of parameters and buffers in the host's memory, and one of the inputs.
    """
    check_training(training)
    parsed = Options.parse(None, options)
    arguments = Arguments.parse(example_inputs)
    function = as_callable(model, arguments)
    _check_has_data(function, arguments)
    compiled = Compiled(function, parsed, training, dynamic)
    with preserve_state(function, arguments.tensors):
        try:
            run_example(compiled, arguments.copies(), training)
        except NimbleError:
            raise
        except Exception:
            check_call(function, arguments.copies())
            raise
    compiled.report_if_eager()
    return compiled


class Compiled:
    """A compiled model, as `nimble_fx.compile` returns it.

    A call is checked against the one that was compiled:

    - Arguments: structure, numbers and strings by value, tensors by type, shape, stride, dtype,
      device, in training `requires_grad`. What differs is an InputError (or see `dynamic`).
    - Parameters and buffers are those that the model has now, wherever they are, also where they
      were replaced. Another shape, stride, dtype or device is an InputError.
    - Submodules, `train`/`eval`, hooks, tied parameters: a change is an InputError.
    - PyTorch's modes and settings (gradients, autocast, inference mode, default dtype and device,
      deterministic algorithms, dispatch modes, functorch): a call under others goes through
      Dynamo's guards, and compiles again.
    - Other Python values, such as attributes of modules that are no tensors, `forward` methods,
      globals and closures, are those of the compile: a change has no effect.

    Models that Dynamo compiles in parts, or that change Python objects as they run, always go
    through Dynamo's guards; `why_guarded` says why.

    Attributes:
        model: the module or function that is called; for an exported or scripted model, the module
            made from it, which has the parameters.
        training: whether its backward was compiled, and calls follow the caller's grad mode.
        dynamic: whether other calls than the compiled one go through Dynamo's guards.

    Compiled code and captured graphs are freed with this object. After a graph break, Dynamo caches
    the rest with the model's own functions, as with torch.compile.
    """

    def __init__(
        self, model: Callable[..., Any], options: Options, training: bool, dynamic: bool
    ) -> None:
        self.model, self.training, self.dynamic = model, training, dynamic
        self._reporter = Reporter(options.on_fallback)
        function = unique_function(model)
        self._backend = _Backend(options, argument_names(model), function.__code__.co_name)
        self._run = torch.compile(function, backend=self._backend)
        dropping = weakref.finalize(self, drop_compiled, function.__code__, self._backend)
        dropping.atexit = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the model; without gradients unless it is compiled for training.

        Raises:
            InputError: the arguments or the model are not as they were compiled, unless `dynamic`.
        """
        if self._backend.direct is None or torch.compiler.is_compiling():
            return self._guarded(args, kwargs)
        if self.training or not torch.is_grad_enabled():
            return self._call(args, kwargs)
        set_grad_enabled(False)
        try:
            return self._call(args, kwargs)
        finally:
            set_grad_enabled(True)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        direct = self._backend.direct
        if direct is None:
            return self._guarded(args, kwargs)
        result = direct(args, kwargs)
        return result if result is not NotImplemented else self._other_call(direct, args, kwargs)

    def _other_call(self, direct: DirectCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that differs from the compiled one, at least to a quick check."""
        if not direct.is_for_now():
            return self._guarded(args, kwargs)
        difference = direct.difference(args, kwargs)
        if difference is not None and (not self.dynamic or any(global_module_hooks())):
            raise InputError(
                f"this call of {name_of(self.model)} is not as it was compiled: {difference}. Call "
                "nimble_fx.compile again for it, or with dynamic=True"
            )
        result = NotImplemented if difference is not None else direct(args, kwargs)
        return result if result is not NotImplemented else self._guarded(args, kwargs)

    def _guarded(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls the model through Dynamo's guards; finds the direct way if that compiles it."""
        with torch.set_grad_enabled(self.training and torch.is_grad_enabled()):
            if torch.compiler.is_compiling():
                return self._run(*args, **kwargs)
            with hooks_guarded(), self._backend.observing() as observed:
                result = self._run(*args, **kwargs)
            if observed and self._backend.direct is None:
                self._find_direct(observed, args, kwargs, result)
            return result

    def _find_direct(
        self, observed: Sequence[Observed], args: Any, kwargs: Any, result: object
    ) -> None:
        try:
            if len(observed) > 1:
                raise NotDirectError("PyTorch compiles it in parts")
            modules = modules_of(self.model)
            self._backend.direct = DirectCall(
                observed[0], args, kwargs, result, modules, self.training
            )
            self._backend.why_guarded = None
        except (NotDirectError, UnsupportedError) as why:
            self._backend.why_guarded = str(why)

    @property
    def why_guarded(self) -> str | None:
        """Why its calls go through Dynamo's guards; None if they do not."""
        return self._backend.why_guarded

    def report_if_eager(self) -> None:
        """Reports a fallback if Dynamo found no graph in the model."""
        if not self._backend.is_called:
            reason = "PyTorch found no graph in it, so that nothing is compiled ahead of time"
            self._reporter.report(Fallback(name_of(self.model), "in eager", reason))

    @property
    def programs(self) -> tuple[Program, ...]:
        """The programs compiled for this object alone, oldest first.

        Calls with other shapes add programs. `torch.compiler.reset()` empties the list, and the
        next call compiles again.
        """
        return tuple(self._backend.programs)

    def __repr__(self) -> str:
        purpose = "training" if self.training else "inference"
        lines = [f"  {program!r}" for program in self.programs]
        head = f"<nimble_fx.compile {name_of(self.model)} for {purpose}"
        guarded = f", guarded by Dynamo: {self.why_guarded}" if self.why_guarded else ""
        return "\n".join([f"{head}: {plural(len(lines), 'program')}{guarded}", *lines]) + ">"

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

    def __init__(self, options: Options, names: Mapping[str, str], function_name: str) -> None:
        """A backend without programs.

        Args:
            options: the user's.
            names: see `Compiler`.
            function_name: of the code that Dynamo compiles for a call.
        """
        self.__name__ = "nimble"  # its name in PyTorch's logs
        self.programs: list[Program] = []
        self.is_called = False
        self.direct: DirectCall | None = None
        self.why_guarded: str | None = None
        self._options, self._names, self._function_name = options, names, function_name
        self._observed: list[Observed] | None = None
        self._has_compiled = False

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        self.is_called = True
        self._has_compiled = True
        target = this_machine(self._options, self._add_program)
        why = why_not_alone(gm, self._function_name)
        compiler = Compiler(gm, self._options, target, self._names)
        run = lower(gm, example_inputs, compiler)
        call = Observed(run, compiler.unwrapped, why, compiler.writes_inputs)

        def observed(*inputs: Any) -> Sequence[Any]:
            outputs: Sequence[Any] = run(*inputs)
            if self._observed is not None:
                self._observed.append(replace(call, inputs=inputs, outputs=outputs))
            return outputs

        return observed

    @contextmanager
    def observing(self) -> Iterator[list[Observed]]:
        """Lists the calls of graphs within the block; none if it compiles nothing."""
        observed: list[Observed] = []
        self._observed, self._has_compiled = observed, False
        try:
            yield observed
        finally:
            self._observed = None
            if not self._has_compiled:
                observed.clear()

    def reset(self) -> None:
        """Empties the lists of programs; `torch.compiler.reset()` calls this."""
        self.programs.clear()
        self.direct = None
        reset()

    def _add_program(self, program: Program) -> None:
        self.programs.append(program)
        register(program)


def _check_has_data(function: Callable[..., Any], arguments: Arguments) -> None:
    parameters = dict(function.named_parameters()) if isinstance(function, nn.Module) else {}
    lazy = [name for name, value in parameters.items() if is_lazy(value)]
    if lazy:
        raise OptionError(
            f"{name_of(function)} has parameters without a shape ({', '.join(lazy)}): call it once "
            "before nimble_fx.compile"
        )
    if any(value.is_meta for value in (*parameters.values(), *arguments.tensors)):
        raise OptionError(
            f"{name_of(function)} has parameters or example inputs on the device 'meta', without "
            "data: nimble_fx.compile runs it; nimble_fx.plan, which does not, takes them"
        )
