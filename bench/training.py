"""What an iteration takes, forward, loss and backward: nimble_fx against its peers, side by side.

As `bench.inference`, for models in training: what is checked are outputs and all gradients. The
optimizer is not in it, and models have no dropout, whose masks would be others in float64.
"""

import sys
from collections.abc import Sequence

from bench.peers.comparison import compare


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints, writes; 0, or 1 if a contestant failed."""
    return compare("training", __doc__, training=True, argv=argv)


if __name__ == "__main__":
    sys.exit(main())
