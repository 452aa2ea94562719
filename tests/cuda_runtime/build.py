"""Builds the stand-in for the PyTorch that runs this: `python -m tests.cuda_runtime.build OUT`.

OUT gets NVIDIA's libraries by name, to be found by LD_LIBRARY_PATH before the process starts, and
`libstandin_allocator.so`. It needs g++ and binutils; CUDA's headers come from NVIDIA's packages.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.cuda_runtime import stubs, wheel

NATIVE = Path(__file__).parent / "native"
HEADERS = ("nvidia-cuda-runtime==13.0.96", "nvidia-cuda-crt==13.0.88")
SOURCES = {
    "libcudart.so.13": "runtime/*.cpp",
    "libcuda.so.1": "driver/*.cpp",
    "libcublas.so.13": "libraries/cublas.cpp",
    "libcublasLt.so.13": "libraries/cublasLt.cpp",
    "libcudnn.so.9": "libraries/cudnn.cpp",
    "libnvidia-ml.so.1": "libraries/nvml.cpp",
}
_COMPILER = ("g++", "-std=c++17", "-O1", "-fPIC")
_RUNTIME = "libcudart.so.13"


def build(out: Path) -> None:
    """Compiles all sources, two at a time or more, and links the libraries."""
    torch = _torch()
    work = out / "objects"
    work.mkdir(parents=True, exist_ok=True)
    include = _headers(work)
    libraries = wheel.needed(torch / "lib")
    version = zip(("MAJOR", "MINOR", "PATCH"), wheel.cudnn_version(torch / "lib"), strict=True)
    flags = [
        *("-Wall", "-Wno-unused-parameter", f"-I{include}", f"-I{NATIVE / 'runtime'}"),
        *(f"-DCUDNN_{part}={number}" for part, number in version),
    ]
    for library in libraries:
        (work / f"{library.soname}.cpp").write_text(stubs.source(library))
        (work / f"{library.soname}.map").write_text(stubs.version_script(library))
    compiled = _compile(libraries, work, flags)
    (out / _RUNTIME).unlink(missing_ok=True)
    for library in libraries:
        _link(library.soname, compiled[library.soname], out)
    _build_allocator(out, torch, include)


def _compile(
    libraries: Iterable[wheel.Needed], work: Path, flags: Sequence[str]
) -> dict[str, list[Path]]:
    """The objects of each library."""
    objects, commands = dict[str, list[Path]](), list[list[str]]()
    for library in libraries:
        own = sorted(NATIVE.glob(SOURCES[library.soname])) if library.soname in SOURCES else []
        objects[library.soname] = []
        for source in (work / f"{library.soname}.cpp", *own):
            made = work / f"{library.soname}.{source.stem}.o"
            commands.append([*_COMPILER, *flags, "-c", str(source), "-o", str(made)])
            objects[library.soname].append(made)
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(_run, commands))
    return objects


def _link(soname: str, objects: Iterable[Path], out: Path) -> None:
    script = NATIVE / "runtime/cudart.map"
    if soname != _RUNTIME:
        script = out / f"objects/{soname}.map"
    uses = ["-ldl", "-pthread"] if soname == _RUNTIME else [f"-L{out}", f"-l:{_RUNTIME}"]
    _run(
        [
            *(*_COMPILER, "-shared", *map(str, objects), "-o", str(out / soname)),
            *(f"-Wl,-soname,{soname}", f"-Wl,--version-script={script}", *uses),
        ]
    )


def _build_allocator(out: Path, torch: Path, include: Path) -> None:
    """What listens to PyTorch's allocator is compiled with PyTorch's own headers."""
    headers = (include, torch / "include", torch / "include/torch/csrc/api/include")
    _run(
        [
            *(*_COMPILER[:1], "-std=c++20", *_COMPILER[2:], "-w", "-shared"),
            *(f"-I{each}" for each in headers),
            *(str(NATIVE / "allocator/poison_blocks.cpp"), "-o"),
            *(str(out / "libstandin_allocator.so"), f"-L{out}", f"-L{torch / 'lib'}"),
            *(f"-l:{_RUNTIME}", "-lc10_cuda", "-lc10"),
        ]
    )


def _headers(work: Path) -> Path:
    """CUDA's headers, out of NVIDIA's packages; never the libraries in them."""
    folder = work / "headers"
    include = folder / "nvidia/cu13/include"
    if not include.is_dir():
        download = ["download", "--quiet", "--no-deps", "--dest", str(folder), *HEADERS]
        _run([sys.executable, "-m", "pip", *download])
        for package in folder.glob("*.whl"):
            with zipfile.ZipFile(package) as archive:
                archive.extractall(
                    folder, [name for name in archive.namelist() if "/include/" in name]
                )
    return include


def _torch() -> Path:
    """The folder of the PyTorch that is installed here, which need not be importable yet."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise LookupError(f"{sys.executable} has no PyTorch")
    return Path(spec.origin).parent


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    build(parser.parse_args().out.resolve())
