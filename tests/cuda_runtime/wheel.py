"""What PyTorch's CUDA wheel needs of NVIDIA's libraries, read from the wheel itself."""

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

LIBRARIES = {
    "libcudart.so.13": "cuda[A-Z]|__cuda",
    "libcublas.so.13": "cublas",
    "libcublasLt.so.13": "cublasLt",
    "libcudnn.so.9": "cudnn",
    "libcufft.so.12": "cufft",
    "libcurand.so.10": "curand",
    "libcusparse.so.12": "cusparse",
    "libcusolver.so.12": "cusolver",
    "libcupti.so.13": "cupti",
    "libnvrtc.so.13": "nvrtc",
    "libcusparseLt.so.0": "cusparseLt",
    "libcufile.so.0": "cuFile",
    "libnccl.so.2": "nccl|pnccl",
    "libnvshmem_host.so.3": "nvshmem",
    "libcuda.so.1": "cu[A-Z](?!BLAS)",
    "libnvidia-ml.so.1": "nvml",
}
"""NVIDIA's libraries, and how the names of their functions begin."""

_BY_NAME_ALONE = {"NVSHMEM": "libnvshmem_host.so.3"}
"""Versions of symbols that are not their library's name."""

_FOUND_AT_RUN_TIME = re.compile(
    rb"\0((?:nvml|cu(?:Ctx|Device|DevResource|DevSm|GreenCtx|Mem|Multicast))[A-Z]\w{2,50})\0"
)
"""Functions that PyTorch looks up by name, as they stand among the strings of its libraries."""


@dataclass
class Needed:
    """One of NVIDIA's libraries: the versions of the symbols that are wanted of it, by name."""

    soname: str
    versions: dict[str, str] = field(default_factory=dict)


def needed(torch_lib: Path) -> list[Needed]:
    """The libraries that PyTorch's need, the runtime first, and what of each."""
    linked, symbols = set[str](), dict[str, str]()
    for library in sorted(torch_lib.glob("lib*.so")):
        linked.update(re.findall(r"NEEDED.*\[(.*?)\]", _output("readelf", "-dW", library)))
        symbols |= _undefined(library)
    for name in ("libc10_cuda.so", "libtorch_cuda.so"):
        text = (torch_lib / name).read_bytes().replace(b"\0", b"\0\0")
        symbols = {m.decode(): "" for m in _FOUND_AT_RUN_TIME.findall(text)} | symbols
    wanted = [name for name in LIBRARIES if name in linked or name == "libnvidia-ml.so.1"]
    found = {name: Needed(name) for name in wanted}
    for symbol, version in symbols.items():
        home = _home(symbol, version)
        if home in found:
            found[home].versions[symbol] = version
    return list(found.values())


def cudnn_version(torch_lib: Path) -> tuple[str, ...]:
    """Major, minor and patch of the cuDNN that the wheel requires."""
    (metadata,) = torch_lib.parent.parent.glob("torch-*.dist-info/METADATA")
    found = re.search(r"nvidia-cudnn-cu\d+==(\d+)\.(\d+)\.(\d+)", metadata.read_text())
    if found is None:
        raise LookupError(f"{metadata} requires no cuDNN: it is not PyTorch's CUDA build")
    return found.groups()


def _undefined(library: Path) -> dict[str, str]:
    found = {}
    for token in _output("nm", "-D", "--undefined-only", library).split():
        if re.match(r"(__)?(cu|nv|nccl|pnccl)", token):
            name, _, version = token.partition("@")
            found[name] = version.lstrip("@")
    return found


def _home(symbol: str, version: str) -> str | None:
    """The library that a symbol is from: by its version, or its name, the longest match first."""
    if version in LIBRARIES:
        return version
    if version in _BY_NAME_ALONE:
        return _BY_NAME_ALONE[version]
    general_last = sorted(
        LIBRARIES, key=lambda name: (name == "libcuda.so.1", -len(LIBRARIES[name]))
    )
    return next((name for name in general_last if re.match(LIBRARIES[name], symbol)), None)


def _output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
