"""Measures the time of a model's call: nimble_fx with several schedules, and its peers.

Each contestant's results are first compared with those in float64, relative to eager's error. Then
all contestants are timed in turn, round by round; ratios are of times within a round. If a
contestant fails, its line says so. The last lines are the floor: the times of the model's tasks.
"""

import sys
from collections.abc import Sequence

from bench.peers.comparison import compare


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints and writes; returns 0, or 1 if a contestant failed."""
    return compare("inference", __doc__, training=False, argv=argv)


if __name__ == "__main__":
    sys.exit(main())
