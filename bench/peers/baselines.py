"""The contestants: eager PyTorch, its other compilers, onnxruntime, and nimble_fx."""

import argparse
import importlib.util
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import nimble_fx
from bench.policies import find_policy
from nimble_fx.backend import nimble
from nimble_fx.frontend.models.model_function import unique_function

Run = Callable[..., Tensor]
"""Takes a model's arguments and returns its output."""

Compile = Callable[[nn.Module, Sequence[Tensor]], Run]
"""Makes a contestant of a model and example inputs; results record its errors."""


ALL_PEERS = (
    *("eager", "dynamo", "aot_eager", "cudagraphs", "inductor", "reduce-overhead"),
    *("max-autotune", "freezing", "fused", "fused-serial", "measured"),
    *("frozen", "finite", "folded", "unfolded", "onnxruntime"),
)


def refuse_unknown_peers(
    options: argparse.ArgumentParser, names: Sequence[str], device: str, training: bool = False
) -> None:
    """Ends the command with an error if a peer is not available."""
    there = peers(torch.device(device), training)
    for name in names:
        if name == "onnxruntime" and name not in there and not training:
            options.error('onnxruntime is not installed: pip install -e ".[bench]"')
        if name not in there:
            options.error(f"no peer {name!r} on {device}; there are {', '.join(there)}")


def peers(device: torch.device, training: bool) -> dict[str, Compile]:
    """The peers for a device, by name; eager first.

    On a CPU "dynamo" is eager called through `torch.compile`, a bound for backends that use eager's
    kernels, and "unfolded" is nimble_fx with `fold_weights=False`. "freezing" is Inductor with its
    option of that name; it assumes finite values, like "finite", nimble_fx with `assume_finite`.
    "fused" is nimble_fx with Inductor's kernels, "fused-serial" with these on one stream,
    "measured" with the faster of these and PyTorch's; "folded" is nimble_fx on a GPU with
    `fold_weights=True`; "frozen", on a CPU, is "measured" without guards and with released weights,
    because "freezing" treats weights as constants.
    """
    found: dict[str, Compile] = {"eager": lambda model, inputs: model}
    if device.type == "cuda":
        found["cudagraphs"] = _by_torch(backend="cudagraphs")
        found["inductor"] = _by_torch()
        found["reduce-overhead"] = _by_torch(mode="reduce-overhead")
        found["max-autotune"] = _by_torch(mode="max-autotune")
    else:
        found["dynamo"] = _by_torch(backend="eager")
        found["aot_eager"] = _by_torch(backend="aot_eager")
        found["inductor"] = _by_torch()
    ours = {"on_fallback": "error"}
    fused = {**ours, "kernels": "inductor"}
    found["fused"] = _by_torch(backend=nimble, options=fused)
    if device.type == "cuda":
        found["fused-serial"] = _by_torch(backend=nimble, options={**fused, "policy": "serial"})
    if device.type == "cuda" and not training:
        found["folded"] = _by_torch(backend=nimble, options={**ours, "fold_weights": True})
    found["measured"] = _by_torch(backend=nimble, options={"kernels": "auto"})
    if not training and device.type == "cpu":
        found["freezing"] = _by_torch(options={"freezing": True})
        found["frozen"] = _frozen
        found["finite"] = _by_torch(backend=nimble, options={**ours, "assume_finite": True})
        found["unfolded"] = _by_torch(backend=nimble, options={**ours, "fold_weights": False})
    if not training and _is_installed("onnxruntime", "onnx", "onnxscript"):
        found["onnxruntime"] = partial(_onnxruntime, device)
    return found


def _frozen(model: nn.Module, inputs: Sequence[Tensor]) -> Run:
    """Uses `nimble_fx.compile` on a copy of the model, and frees its weights."""
    return nimble_fx.compile(
        deepcopy(model),
        tuple(inputs),
        guards=False,
        release_weights=True,
        kernels="auto",
        on_fallback="silent",
    )


def policies(names: Sequence[str]) -> dict[str, Compile]:
    """nimble_fx with each policy. A fallback is an error."""
    return {
        name: _by_torch(
            backend=nimble, options={"policy": find_policy(name), "on_fallback": "error"}
        )
        for name in names
    }


def _by_torch(**how: Any) -> Compile:
    """Uses `torch.compile`, with code of its own, so that Dynamo has no other entries to check."""
    return lambda model, inputs: torch.compile(unique_function(model), **how)


def _is_installed(*packages: str) -> bool:
    return all(importlib.util.find_spec(package) for package in packages)


def _onnxruntime(device: torch.device, model: nn.Module, inputs: Sequence[Tensor]) -> Run:
    """An onnxruntime session on the device, which reads and writes PyTorch's tensors in place.

    On a GPU it computes without TF32, like PyTorch's matrix products but not its convolutions:
    onnxruntime has one option for both.

    Raises:
        RuntimeError: the model cannot be exported, or there is no session on the device.
    """
    import onnxruntime as ort

    exported = torch.onnx.export(model, tuple(inputs), dynamo=True, verbose=False)
    if exported is None:
        raise RuntimeError("the model was not exported")
    provider = "CUDAExecutionProvider" if device.type == "cuda" else "CPUExecutionProvider"
    if provider not in ort.get_available_providers():
        raise RuntimeError(f"onnxruntime has no {provider}")
    options = ort.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    proto = exported.model_proto.SerializeToString()
    exact = {"use_tf32": "0"} if device.type == "cuda" else {}
    session = ort.InferenceSession(proto, options, providers=[(provider, exact)])
    return partial(_run_session, session, model(*inputs).detach().contiguous())


def _run_session(session: Any, example: Tensor, *inputs: Tensor) -> Tensor:
    """Runs one call; returns when it is done."""
    output = torch.empty_like(example)
    binding = session.io_binding()
    for value, x in zip(session.get_inputs(), inputs, strict=True):
        binding.bind_input(value.name, *_described(x))
    binding.bind_output(session.get_outputs()[0].name, *_described(output))
    session.run_with_iobinding(binding)
    return output


def _described(x: Tensor) -> tuple[str, int, Any, tuple[int, ...], int]:
    """A tensor's description for onnxruntime: device, its index, NumPy's type, shape, address."""
    dtype = torch.empty(0, dtype=x.dtype).numpy().dtype
    return x.device.type, x.device.index or 0, dtype, tuple(x.shape), x.data_ptr()
