"""What a call of a model takes: nimble_fx by several schedules against its peers, side by side.

Each contestant is first checked against eager PyTorch in float64's terms. Then all are timed in
turn, round by round, and ratios are of times within a round. A contestant that fails is a line
that says so. The lowest lines are the floor: what the model's tasks take by themselves.
"""

import sys
from collections.abc import Sequence

from bench.peers.comparison import compare


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints, writes; 0, or 1 if a contestant failed."""
    return compare("inference", __doc__, training=False, argv=argv)


if __name__ == "__main__":
    sys.exit(main())
