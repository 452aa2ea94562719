"""Benchmarks of nimble_fx: each module here is a command, `python -m bench.inference`.

The packages beside them are what the commands are made of: `models` and `policies` (what is
compared), `peers` (with what), `measuring` (how), `problems` (schedules and the best ones there
are), `command_line` (options and screen) and `tables` (what is made of `results/`).
"""

import torch

from nimble_fx.backend import nimble

if "nimble" not in torch._dynamo.list_backends(()):  # run from a checkout, not installed
    torch._dynamo.register_backend(nimble, name="nimble")
