"""Benchmarks of nimble_fx: each module here is a command, `python -m bench.inference`.

The packages contain their parts: `models`, `policies` (schedules of other systems), `peers` (other
compilers, and the comparison), `measuring`, `problems` (schedules against optimal ones),
`command_line` (options and output) and `tables` (which show `results/`).
"""

import torch

from nimble_fx.backend import nimble

if "nimble" not in torch._dynamo.list_backends(()):  # run from a checkout, not installed
    torch._dynamo.register_backend(nimble, name="nimble")
