"""Tests of the stand-in itself run on it alone: `make test-cuda`."""

import sys

collect_ignore_glob = [] if "tests.cuda_runtime.plugin" in sys.modules else ["test_*.py"]
