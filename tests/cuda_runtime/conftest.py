"""Tests of the stand-in itself only run on it (`make test-cuda`).

Its rules of capture are CUDA's: a GPU confirms them.
"""

import sys

import torch

if "tests.cuda_runtime.plugin" in sys.modules:
    collect_ignore_glob = []
elif torch.cuda.is_available():
    collect_ignore_glob = ["test_[!c]*.py"]  # all but test_capture_rules.py
else:
    collect_ignore_glob = ["test_*.py"]
