"""Measures the time of a training iteration (forward, loss, backward): nimble_fx and its peers.

Like `bench.inference`, for models in training: it checks outputs and all gradients. There is no
optimizer, and models have no dropout, whose masks would differ in float64.
"""

import sys
from collections.abc import Sequence

from bench.peers.comparison import compare


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints and writes; returns 0, or 1 if a contestant failed."""
    return compare("training", __doc__, training=True, argv=argv)


if __name__ == "__main__":
    sys.exit(main())
