# make demo, make test: each makes .venv where there is none and installs what it needs, once.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CUDA_TORCH := $(or $(TORCH),2.13.0)
TORCH ?= 2.11.0
MINUTES ?= 5

# Tests start processes that import PyTorch, which takes three times as long where Python may not keep
# what it has compiled.
unexport PYTHONDONTWRITEBYTECODE

# Of pure functions from graph to graph or text, which hardly compile a model: quick to run after each
# edit. A test is among them if its file is one of these or lies in one of these folders.
QUICK := $(addprefix tests/,codegen ir passes scheduling simulation traces verify/test_verify.py \
	verify/test_diagnostics.py test_house.py)

IN_PARALLEL := --numprocesses auto --dist worksteal

# Tests that need a GPU, and where there is none: the environment, PyTorch's CUDA build in it, the
# stand-in for NVIDIA's libraries, and the orders of work that are tried (see tests/cuda_runtime).
# Not the tests of bench: what they measure means nothing there, and takes minutes.
HAS_GPU := $(shell nvidia-smi -L 2>/dev/null)
CUDA_VENV := .venv-cuda-$(CUDA_TORCH)
PLANNING_TESTS := tests/frontend/planning/test_planned_kernels.py
STANDIN_TESTS := $(filter-out $(PLANNING_TESTS),$(shell \
	grep -rl --include='test_*.py' --exclude-dir=bench 'pytest[.]mark[.]gpu$$' tests))
TRITON_TESTS := tests/cuda_runtime/test_triton.py tests/rewrites/inductor/test_kernels_on_cuda.py \
	tests/scenarios/test_triton_kernels.py
ORDERS := lazy-1 random-1 random-2

.PHONY: demo test test-slow test-all test-cuda cuda-env $(ORDERS) check check-quick lint bench fuzz compat clean

demo: $(VENV)/.installed-demo
	$(BIN)/python -m bench.demo --no-write

test: check
	$(BIN)/python -m pytest $(IN_PARALLEL) -m "not slow"

# What takes seconds a test, starts processes or needs large packages.
test-slow: $(VENV)/.installed-test $(VENV)/.installed-test-slow
	$(BIN)/python -m pytest $(IN_PARALLEL) -m slow

# Both, which collects them once.
test-all: check $(VENV)/.installed-test-slow
	$(BIN)/python -m pytest $(IN_PARALLEL)

check: lint
	$(BIN)/mypy

check-quick: lint
	$(BIN)/python -m pytest $(IN_PARALLEL) -m "not slow" $(QUICK)

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

bench: $(VENV)/.installed-test $(VENV)/.installed-test-slow
	$(BIN)/python -m bench.compile_time
	$(BIN)/python -m bench.overhead
	$(BIN)/python -m bench.lifetime
	$(BIN)/python -m bench.memory
	$(BIN)/python -m bench.optimality
	$(BIN)/python -m bench.simulation
	$(BIN)/python -m bench.inference
	$(BIN)/python -m bench.training
	$(BIN)/python -m bench.report

# The properties on new random examples; a failure is left in fuzz_failures/ as a file to run.
fuzz: $(VENV)/.installed-test $(VENV)/.installed-test-slow
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

# The same suite on another torch, in an environment of its own.
compat: .venv-torch-$(TORCH)/.installed
	.venv-torch-$(TORCH)/bin/python -m pytest

ifneq ($(HAS_GPU),)
test-cuda: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m gpu
else
test-cuda: $(CUDA_VENV)/.built
	$(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync=target TORCH=$(CUDA_TORCH) $(ORDERS)
endif

cuda-env: $(CUDA_VENV)/.built

# One order of work, by mode and seed: all tests, and those that need a second device. The last order
# also runs what takes longest: plans, which run nothing in any order, and tests that need Triton.
$(ORDERS): STANDIN = LD_LIBRARY_PATH=$(CUDA_VENV)/stand-in \
	STANDIN_MODE=$(word 1,$(subst -, ,$@)) STANDIN_SEED=$(word 2,$(subst -, ,$@))
$(ORDERS): PYTEST = $(CUDA_VENV)/bin/python -m pytest -p tests.cuda_runtime.plugin \
	-p no:cacheprovider -m gpu
$(ORDERS):
	$(STANDIN) $(PYTEST) $(STANDIN_TESTS)
	$(STANDIN) STANDIN_DEVICES=2 $(PYTEST) tests/cuda_runtime/test_second_device.py \
		tests/devices/test_cuda_devices.py tests/failure_modes/test_streams.py
	$(if $(filter $@,$(lastword $(ORDERS))),$(STANDIN) $(PYTEST) $(PLANNING_TESTS))
	$(if $(filter $@,$(lastword $(ORDERS))),$(STANDIN) STANDIN_TRITON=1 $(PYTEST) $(TRITON_TESTS))

$(CUDA_VENV)/.built: $(CUDA_VENV)/.installed $(shell find tests/cuda_runtime/native -type f) \
		$(addprefix tests/cuda_runtime/,build.py stubs.py wheel.py)
	$(CUDA_VENV)/bin/python -m tests.cuda_runtime.build $(CUDA_VENV)/stand-in
	touch $@

# Of what the wheel requires, Triton alone: for NVIDIA's libraries there is the stand-in. `===`, so
# that no build for the CPU, 2.x.y+cpu, is taken for it.
$(CUDA_VENV)/.installed: constraints.txt
	$(PYTHON) -m venv $(@D)
	grep -vE '^(torch|setuptools)==' constraints.txt > $(@D)/constraints.txt
	$(@D)/bin/python -m pip install --quiet --constraint $(@D)/constraints.txt \
		expecttest filelock fsspec hypothesis jinja2 matplotlib networkx numpy pytest \
		rich sympy typing_extensions
	$(@D)/bin/python -m pip install --quiet --no-deps torch===$(CUDA_TORCH)
	$(@D)/bin/python -m pip install --quiet --no-deps $$($(@D)/bin/python -c \
		"from importlib.metadata import requires as r; print(*[x.split(';')[0] for x in r('torch') if x[:6] == 'triton'])")
	touch $@

# .installed-demo, .installed-test: what an extra of setup.py names, in the same environment.
$(VENV)/.installed-%: setup.py constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[$*]"
	touch $@

.venv-torch-$(TORCH)/.installed: setup.py constraints.txt
	$(PYTHON) -m venv $(@D)
	grep -vE '^(torch|setuptools)==' constraints.txt > $(@D)/constraints.txt
	$(@D)/bin/python -m pip install --quiet --constraint $(@D)/constraints.txt \
		torch==$(TORCH) --editable ".[test,test-slow]"
	touch $@

clean:
	rm -rf .venv .venv-torch-* .venv-cuda-* build nimble_fx.egg-info .hypothesis .import_linter_cache \
		.mypy_cache .pytest_cache .ruff_cache
