"""Packaging of nimble-fx. `pip install -e .[test]` for work on it."""

import runpy
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
LINKED = ["nimble_fx.passes"]  # a link to passes/, which some file systems cannot follow

setup(
    name="nimble-fx",
    version=runpy.run_path(str(HERE / "nimble_fx" / "version.py"))["__version__"],
    description='Multi-stream CUDA graphs for PyTorch: torch.compile(model, backend="nimble")',
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.11",
    packages=[*find_packages(include=["nimble_fx", "nimble_fx.*"], exclude=LINKED), *LINKED],
    package_dir={"nimble_fx.passes": "passes"},
    package_data={"nimble_fx": ["py.typed"]},
    install_requires=["torch>=2.11", "networkx>=3", "filelock>=3"],
    extras_require={
        "demo": ["numpy", "rich"],  # PyTorch warns where there is no numpy
        "test": [
            "expecttest",  # for PyTorch's own tables of operators
            "hypothesis",
            "import-linter",
            "mypy",
            "numpy",
            "pytest",
            "pytest-xdist",
            "rich",
            "ruff",
            "setuptools",
            "types-networkx",
            "types-setuptools",
        ],
        "test-slow": ["matplotlib", "ortools", "transformers"],  # beside those of "test"
        "judge": ["HolisticTraceAnalysis", "pandas<3"],  # see tests/support/recorded_traces.py
        "bench": ["matplotlib", "onnx", "onnxruntime", "onnxscript", "ortools", "rich"],
    },
    entry_points={
        "torch_dynamo_backends": ["nimble = nimble_fx.frontend.register_backend:entry_point"]
    },
)
