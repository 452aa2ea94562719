# make demo, make test: each makes .venv and installs what it needs, once.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TORCH ?= 2.11.0
MINUTES ?= 5

.PHONY: demo test check bench fuzz compat clean

demo: $(VENV)/.installed
	$(BIN)/python -m bench.demo --no-write

test: check
	$(BIN)/python -m pytest --numprocesses auto

check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.installed
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
fuzz: $(VENV)/.installed
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

# The same suite on another torch, in an environment of its own.
compat: .venv-torch-$(TORCH)/.installed
	.venv-torch-$(TORCH)/bin/python -m pytest

$(VENV)/.installed: setup.py constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[test]"
	touch $@

.venv-torch-$(TORCH)/.installed: setup.py constraints.txt
	$(PYTHON) -m venv $(@D)
	grep -vE '^(torch|setuptools)==' constraints.txt > $(@D)/constraints.txt
	$(@D)/bin/python -m pip install --quiet --constraint $(@D)/constraints.txt \
		torch==$(TORCH) --editable ".[test]"
	touch $@

clean:
	rm -rf .venv .venv-torch-* build nimble_fx.egg-info .hypothesis .import_linter_cache \
		.mypy_cache .pytest_cache .ruff_cache
