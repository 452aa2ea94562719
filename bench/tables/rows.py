"""The results of a comparison: a row for each model and batch size, to JSON and back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.measuring.lower_bound import Floor
from bench.measuring.timing import Spread, ratios


@dataclass(frozen=True)
class Schedule:
    """The schedule of one graph of a model with one policy."""

    policy: str
    program: str
    n_tasks: int
    n_streams: int
    n_waits: int
    frozen: bool


@dataclass(frozen=True)
class Result:
    """The result of a contestant.

    Attributes:
        error: why it failed; None if it did not.
        note: a remark, such as that some graphs ran uncaptured.
        first_seconds: the time of the first call, including compilation.
        distance: the relative distance of its results from those in float64, root mean square.
        same_bits: whether all its results equal eager's bit by bit.
        samples: the seconds of a call, round by round.
    """

    error: str | None = None
    note: str | None = None
    first_seconds: float | None = None
    distance: float | None = None
    same_bits: bool = False
    samples: Sequence[float] = ()

    @staticmethod
    def of(plain: Mapping[str, Any]) -> "Result":
        """The result that JSON was made from."""
        return Result(**{**plain, "samples": tuple(plain["samples"])})


OURS = "auto"
"""The contestant that the others are compared with: nimble_fx with the default options."""


@dataclass(frozen=True)
class Row:
    """A model at a batch size.

    Attributes:
        model: its name in the zoo.
        title: its title, with its form and batch size.
        batch: the batch size.
        inputs: the inputs of a call, such as "f32[1, 3, 224, 224]".
        n_parameters: the number of parameters of this form.
        floor: the times of its tasks; None if they could not be measured.
        floor_error: why they could not be measured.
        schedules: the schedules by policy and graph.
        results: the results by contestant.
    """

    model: str
    title: str
    batch: int
    inputs: Sequence[str]
    n_parameters: int
    floor: Floor | None
    floor_error: str | None
    schedules: Sequence[Schedule]
    results: Mapping[str, Result]

    def ratio(self, name: str, over: str) -> Spread | None:
        """A contestant's time over another's in the same rounds; None if one failed."""
        mine, other = (self.results.get(n, Result()).samples for n in (name, over))
        return ratios(mine, other) if mine and other else None

    @staticmethod
    def of(plain: Mapping[str, Any]) -> "Row":
        """The row that JSON was made from."""
        return Row(
            **{
                **plain,
                "floor": plain["floor"] and Floor(**plain["floor"]),
                "schedules": [Schedule(**each) for each in plain["schedules"]],
                "results": {name: Result.of(each) for name, each in plain["results"].items()},
            }
        )
