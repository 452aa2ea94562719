"""`nimble_fx.compile(model, example_inputs)`: the work of torch.compile's first call, done now."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import nn
from torch.fx import GraphModule
from torch.nn.parameter import is_lazy

from nimble_fx.backend import reset
from nimble_fx.compiler import Compiler, lower
from nimble_fx.errors import NimbleError, OptionError, UnsupportedError
from nimble_fx.fallback import Fallback, Reporter
from nimble_fx.frontend.example_run import check_call, check_training, run_example
from nimble_fx.frontend.model_function import (
    Arguments,
    argument_names,
    as_callable,
    name_of,
    own_function,
)
from nimble_fx.frontend.preserve_state import preserve_state
from nimble_fx.ir.display import plural
from nimble_fx.options import Options
from nimble_fx.program import Program, register
from nimble_fx.this_machine import this_machine
from nimble_fx.torch_internals.dynamo_caches import drop_compiled


def compile(  # noqa: A001  # as torch.compile
    model: object, example_inputs: object, *, training: bool = False, **options: Any
) -> "Compiled":
    """The model, traced, scheduled, proved and frozen for inputs like the example.

    The model is called once on copies of the example inputs, and in training a backward follows.
    Parameters, buffers, gradients, attributes, random numbers and the example inputs are afterwards
    as they were, also when this raises; no other thread may use the model meanwhile. Of a function,
    that is true of the modules and tensors in its closure and the globals that it names.

    Args:
        model: a `torch.nn.Module` in the mode (`train` or `eval`) that it will be called in, a
            function, a `torch.export.ExportedProgram` or a `torch.jit.ScriptModule`.
        example_inputs: a tensor: the one argument; a tuple or list: positional arguments; a dict:
            keyword arguments. A model whose one argument is a list or dict takes `([...],)`.
        training: False: for inference, and every call is made without gradients. True: with the
            backward, and calls follow the caller's grad mode. It is asked for, and not read off
            the grad mode, because that is on unless somebody thinks of it: inference would keep
            what a backward needs, and nobody would know.
        **options: those of `torch.compile(options={...})`; see `nimble_fx.options.Options`.

    Returns:
        A callable that takes the model's arguments. Other shapes compile again, as with
        torch.compile, and so does `torch.inference_mode()`: compile in the mode that you call in.

    Raises:
        OptionError: before any work, if an option is not valid or the example inputs are no
            arguments; later, if the model does not take them, or `training` is asked of one without
            gradients.
        UnsupportedError: with `on_fallback="error"`, if a part cannot be scheduled or frozen.

    Cost: one compile, a copy of parameters and buffers in the host's memory, and one of the inputs.
    """
    check_training(training)
    parsed = Options.parse(None, options)
    arguments = Arguments.parse(example_inputs)
    function = as_callable(model, arguments)
    _refuse_what_has_no_data(function, arguments)
    compiled = Compiled(function, parsed, training)
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
    """A model that is ready to run; `nimble_fx.compile` makes it.

    Attributes:
        model: what is called: the model, or the module made of an exported or scripted one, which
            has the parameters.
        training: whether its backward was prepared, and calls follow the caller's grad mode.

    What was compiled and captured is freed with this object. Where PyTorch breaks the graph, what
    follows the break is kept by the model's own functions, as with torch.compile.
    """

    def __init__(self, model: Callable[..., Any], options: Options, training: bool) -> None:
        self.model, self.training = model, training
        self._backend = _Backend(options, argument_names(model))
        self._reporter = Reporter(options.on_fallback)
        function = own_function(model)
        self._run = torch.compile(function, backend=self._backend)
        dropping = weakref.finalize(self, drop_compiled, function.__code__, self._backend)
        dropping.atexit = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns; without gradients unless it is compiled for training."""
        with torch.set_grad_enabled(self.training and torch.is_grad_enabled()):
            return self._run(*args, **kwargs)

    def report_if_eager(self) -> None:
        """Says so if PyTorch found no graph in the model."""
        if not self._backend.is_called:
            reason = "PyTorch found no graph in it, so that nothing is compiled ahead of time"
            self._reporter.report(Fallback(name_of(self.model), "in eager", reason))

    @property
    def programs(self) -> tuple[Program, ...]:
        """The programs made for this object and no other, oldest first.

        Those that further calls make, for other shapes, are added. `torch.compiler.reset()` empties
        it, and the next call compiles again.
        """
        return tuple(self._backend.programs)

    def __repr__(self) -> str:
        purpose = "training" if self.training else "inference"
        made = [f"  {program!r}" for program in self.programs]
        head = f"<nimble_fx.compile {name_of(self.model)} for {purpose}"
        return "\n".join([f"{head}: {plural(len(made), 'program')}", *made]) + ">"

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
    """The backend of one Compiled, which is handed all programs made for it."""

    def __init__(self, options: Options, names: Mapping[str, str]) -> None:
        self.__name__ = "nimble"  # what torch's logs call it
        self.programs: list[Program] = []
        self.is_called = False
        self._options, self._names = options, names

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        self.is_called = True
        target = this_machine(self._options, self._keep)
        return lower(gm, example_inputs, Compiler(gm, self._options, target, self._names))

    def reset(self) -> None:
        """What `torch.compiler.reset()` calls: Dynamo has dropped what was compiled."""
        self.programs.clear()
        reset()

    def _keep(self, program: Program) -> None:
        self.programs.append(program)
        register(program)


def _refuse_what_has_no_data(function: Callable[..., Any], arguments: Arguments) -> None:
    held = dict(function.named_parameters()) if isinstance(function, nn.Module) else {}
    lazy = [name for name, value in held.items() if is_lazy(value)]
    if lazy:
        raise OptionError(
            f"{name_of(function)} has parameters without a shape ({', '.join(lazy)}): call it once "
            "before nimble_fx.compile"
        )
    if any(value.is_meta for value in (*held.values(), *arguments.tensors)):
        raise OptionError(
            f"{name_of(function)} has parameters or example inputs on the device 'meta', without "
            "data: nimble_fx.compile runs it; nimble_fx.plan, which does not, takes them"
        )
