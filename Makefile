# make demo, make test: each makes .venv where there is none and installs what it needs, once.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TORCH ?= 2.11.0
MINUTES ?= 5

# Of pure functions from graph to graph or text, which hardly compile a model: quick to run after each
# edit. A test is among them if its file is one of these or lies in one of these folders.
QUICK := $(addprefix tests/,codegen ir passes scheduling simulation traces verify/test_verify.py test_house.py)

IN_PARALLEL := --numprocesses auto --dist worksteal

.PHONY: demo test test-slow check check-quick lint bench fuzz compat clean

demo: $(VENV)/.installed-demo
	$(BIN)/python -m bench.demo --no-write

test: check
	$(BIN)/python -m pytest $(IN_PARALLEL) -m "not slow"

# What takes seconds a test, starts processes or needs large packages.
test-slow: $(VENV)/.installed-test $(VENV)/.installed-test-slow
	$(BIN)/python -m pytest $(IN_PARALLEL) -m slow

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
fuzz: $(VENV)/.installed-test
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

# The same suite on another torch, in an environment of its own.
compat: .venv-torch-$(TORCH)/.installed
	.venv-torch-$(TORCH)/bin/python -m pytest

# .installed-demo, .installed-test: what an extra of setup.py names, in the same environment.
$(VENV)/.installed-%: setup.py constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[$*]"
	touch $@

.venv-torch-$(TORCH)/.installed: setup.py constraints.txt
	$(PYTHON) -m venv $(@D)
	grep -vE '^(torch|setuptools)==' constraints.txt > $(@D)/constraints.txt
	$(@D)/bin/python -m pip install --quiet --constraint $(@D)/constraints.txt \
		torch==$(TORCH) --editable ".[test,test-slow]"
	touch $@

clean:
	rm -rf .venv .venv-torch-* build nimble_fx.egg-info .hypothesis .import_linter_cache \
		.mypy_cache .pytest_cache .ruff_cache
