"""Runs the properties of the test suite on new examples for a given time.

Each property gets a batch of random examples in its turn. A failure is shrunk, printed, and left
as a Python file that runs it again.
"""

import argparse
import importlib
import inspect
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from textwrap import indent
from time import monotonic
from types import ModuleType

import torch
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.conftest import collect_ignore

settings.register_profile(
    "fuzz",
    max_examples=100,
    derandomize=False,  # the profile of the tests, from which others inherit, has it
    stateful_step_count=15,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)

_TESTS = Path(__file__).parent
_BLOB = re.compile(r"@?reproduce_failure\('[^']*', b'[^']*'\)")
_N_LIVES = 3
"""A life of a compiled model takes as long as a hundred examples of most properties."""

_N_OPERATORS = 4
"""All samples of so many operators, each of a type of elements that is picked at random."""

Run = Callable[[], object]


class Fuzzer:
    """Counts examples, and keeps what fails."""

    def __init__(self, out: Path) -> None:
        self.examples: Counter[str] = Counter()
        self.failures: dict[str, Path] = {}
        self.n_properties = 0
        self._out = out

    def properties(self) -> Iterator[tuple[str, Run, Callable[[str], str]]]:
        """Name, what runs a batch, and what makes a script of a failure's description."""
        for module in _modules():
            for name, test in vars(module).items():
                if name.startswith("test_") and _is_property(test):
                    full = f"{module.__name__}.{name}"
                    batch = partial(self._count, full, test)
                    yield full, batch, partial(_script_of_test, module.__name__, name)
        yield from self._lives()
        yield from self._samples()

    def run(self, name: str, batch: Run, script: Callable[[str], str]) -> None:
        """A batch; a failure is written to a file."""
        torch.compiler.reset()
        try:
            batch()
        except Exception as error:
            description = "\n".join([repr(error), *getattr(error, "__notes__", ())])
            self._out.mkdir(parents=True, exist_ok=True)
            path = self._out / f"{name.rpartition('.')[2]}.py"
            path.write_text(script(description), encoding="utf-8")
            self.failures[name] = path

    def _lives(self) -> Iterator[tuple[str, Run, Callable[[str], str]]]:
        from tests.devices.test_cuda_lives import LifeOnCuda
        from tests.scenarios.test_life import LIVES, many_programs
        from tests.scenarios.test_lifetime import Lifetime

        on_gpu = [LifeOnCuda] if torch.cuda.is_available() else []
        for machine in (*LIVES, Lifetime, *on_gpu):
            name = f"{machine.__module__}.{machine.__name__}"

            def batch(machine: type = machine, name: str = name) -> None:
                with many_programs():
                    budget = settings(max_examples=_N_LIVES)
                    run_state_machine_as_test(machine, settings=budget)
                self.examples[name] += _N_LIVES

            script = partial(_script_of_life, machine.__module__, machine.__name__)
            yield name, batch, script

    def _samples(self) -> Iterator[tuple[str, Run, Callable[[str], str]]]:
        from tests.operator_samples import assert_some_right

        for device in ("cpu", "virtual"):
            name = f"tests.operator_samples.{device}"

            def batch(device: str = device, name: str = name) -> None:
                for _ in range(_N_OPERATORS):
                    self.examples[name] += assert_some_right(device)

            yield name, batch, _script_of_sample

    def _count(self, name: str, test: Callable[..., None]) -> None:
        """A batch in which each run of the test's body counts.

        Hypothesis documents the attribute, and derives the examples of a derandomized test from it:
        pytest, in the same process, finds it as it was.
        """
        handle = test.hypothesis  # type: ignore[attr-defined]
        body = handle.inner_test

        def counted(*args: object, **kwargs: object) -> object:
            self.examples[name] += 1
            return body(*args, **kwargs)

        handle.inner_test = counted
        try:
            test()
        finally:
            handle.inner_test = body


def fuzz(minutes: float, out: Path) -> Fuzzer:
    """Runs all properties in turn until the time is up; one that failed is not run again.

    Each round has an order of its own, so that in little time each has the same chance.
    """
    deadline = monotonic() + 60 * minutes
    fuzzer = Fuzzer(out)
    properties = list(fuzzer.properties())
    fuzzer.n_properties = len(properties)
    while monotonic() < deadline and len(fuzzer.failures) < len(properties):
        random.shuffle(properties)
        for name, batch, script in properties:
            if monotonic() >= deadline:
                break
            if name not in fuzzer.failures:
                fuzzer.run(name, batch, script)
    return fuzzer


def report(fuzzer: Fuzzer) -> None:
    """Prints the examples of each property, and the files of those that failed."""
    names = sorted(fuzzer.examples.keys() | fuzzer.failures.keys())
    for name in names:
        failure = fuzzer.failures.get(name)
        held = f"FAILED: {failure}" if failure else "held"
        print(f"{fuzzer.examples[name]:>9,}  {name}: {held}")
    reached = f"examples of {len(names)} of {fuzzer.n_properties} properties"
    print(f"{fuzzer.examples.total():>9,}  {reached}, {len(fuzzer.failures)} failed")


def _modules() -> Iterator[ModuleType]:
    """The test modules, in order, but those that need the CUDA runtime or a missing package."""
    left_out = {_TESTS / file for file in collect_ignore}
    for path in sorted(_TESTS.rglob("test_*.py")):
        if path.is_relative_to(_TESTS / "cuda_runtime") or path in left_out:
            continue
        parts = path.relative_to(_TESTS.parent).with_suffix("").parts
        yield importlib.import_module(".".join(parts))


def _is_property(test: object) -> bool:
    """Whether hypothesis gives it all that it wants."""
    drawn = getattr(test, "is_hypothesis_test", False)
    return drawn and callable(test) and not inspect.signature(test).parameters


def _script_of_test(module: str, name: str, description: str) -> str:
    blob = _BLOB.search(description)
    decorator = blob.group().lstrip("@") if blob else "(lambda test: test)"
    return (
        "# Run it from the repository's root: PYTHONPATH=. python this_file.py\n#\n"
        f"{indent(description, '# ', lambda _: True)}\n\n"
        "from hypothesis import reproduce_failure\n\n"
        f"from {module} import {name}\n\n"
        f"{decorator}({name})()\n"
    )


def _script_of_life(module: str, machine: str, description: str) -> str:
    """Hypothesis describes a failing life in Python."""
    steps = [line for line in description.splitlines() if line.startswith("state")]
    return (
        "# Run it from the repository's root: PYTHONPATH=. python this_file.py\n#\n"
        f"{indent(description, '# ', lambda _: True)}\n\n"
        f"from {module} import {machine}\n"
        "from tests.scenarios.test_life import many_programs\n\n"
        "with many_programs():\n" + indent("\n".join(steps), "    ") + "\n"
    )


def _script_of_sample(description: str) -> str:
    """The last line of the description is the call."""
    *_, call = description.splitlines()
    return (
        "# Run it from the repository's root: PYTHONPATH=. python this_file.py\n#\n"
        f"{indent(description, '# ', lambda _: True)}\n\n"
        "import torch\n\n"
        "from tests.operator_samples import assert_right\n\n"
        f"{call}\n"
    )


def main() -> int:
    """Fuzzes and reports; 1 if a property failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--out", type=Path, default=Path("fuzz_failures"))
    args = parser.parse_args()
    settings.load_profile("fuzz")
    fuzzer = fuzz(args.minutes, args.out)
    report(fuzzer)
    return 1 if fuzzer.failures else 0


if __name__ == "__main__":
    sys.exit(main())
