# A new machine needs Python >= 3.11 and make only: each target builds its environment.
# `make PYTHON=python3.13 test` chooses the interpreter; `make ARGS="..." test` adds arguments to
# the command of the target.

VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

# The first interpreter on the path that has version 3.11 or newer.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)

# Numba's cache of a function does not notice changes in the functions that it calls, so each state
# of the kernels has its own cache.
KERNELS := $(shell find src/bnmc/_kernels -name '*.py' 2>/dev/null | sort | xargs cat /dev/null \
	| cksum | cut -d ' ' -f 1)
NUMBA_CACHE_DIR ?= $(CURDIR)/.cache/numba/$(KERNELS)
export NUMBA_CACHE_DIR

.PHONY: help test test-slow fuzz lint docs docs-full demo bench wheel smoke mutants clean
.NOTPARALLEL:

help:
	@echo "make test       lint, types, tests, doctests, coverage, documentation"
	@echo "make test-slow  the tests that make test leaves out: longer runs of the same mechanisms"
	@echo "make fuzz       the tests with Hypothesis, with new examples each day"
	@echo "make lint       ruff and mypy only"
	@echo "make docs       the documentation, in docs/_build/html"
	@echo "make docs-full  the same, with all figures made (minutes)"
	@echo "make demo       bnmc demo: handwritten digits through deep random networks"
	@echo "make wheel      the wheel for this platform, with compiled kernels (minutes), in dist"
	@echo "make smoke      the wheel in a new environment, by the interpreter PYTHON"
	@echo "make mutants    small faults in changed files: which ones do the tests find?"
	@echo "make bench      the main benchmark, beside NumPy, PyTorch and JAX; others by ARGS"
	@echo "make clean      remove the environment and all caches"

# Each of the two workers has one core: threads of BLAS and PyTorch would wait for each other.
test test-slow fuzz: export OPENBLAS_NUM_THREADS := 1
test test-slow fuzz: export OMP_NUM_THREADS := 1
# Some machines forbid Python to keep compiled modules, which each process of a test would compile.
test test-slow fuzz: export PYTHONDONTWRITEBYTECODE :=

# A worker runs whole files while there are enough: the tests of a file share compiled kernels.
test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" --cov --cov-report=term $(ARGS)
	$(if $(ARGS),,$(MAKE) --no-print-directory docs)

# The newest interpreter on the path beside that of the environment, for a smoke run.
NEWEST ?= $(shell for python in python3.14 python3.13 python3.12; do \
	$$python -c '' 2>/dev/null && echo $$python && break; done)

test-slow: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow $(ARGS)
	$(if $(ARGS),,$(if $(NEWEST),$(MAKE) --no-print-directory PYTHON=$(NEWEST) smoke))

# The seed of the day, which `make SEED=20260131 fuzz` repeats.
SEED ?= $(shell date -u +%Y%m%d)

fuzz: export BNMC_FUZZ = 1
fuzz: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 -m hypothesis --hypothesis-seed=$(SEED) $(ARGS)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Sphinx treats warnings as errors, and the search must find what readers type.  This target makes three of the figures; docs-full makes all.
docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -q -W --keep-going $(ARGS) docs docs/_build/html
	$(BIN)/python docs/scripts/check_search.py docs/_build/html

docs-full: export BNMC_DOCS_FULL = 1
docs-full:
	rm -rf docs/figures
	$(MAKE) --no-print-directory docs

demo: $(VENV)/.demo
	$(BIN)/bnmc demo $(ARGS)

# The main table, whose figures the documentation shows for each kind of processor;
# `make ARGS="-k gradients" bench` runs other ones, `make ARGS=-v bench` all.
KEPT = bench/results/$(shell date -u +%F)-simulate-$(shell $(BIN)/python -c \
	"from llvmlite import binding; print(binding.get_host_cpu_name())").json

bench: $(VENV)/.bench
	$(BIN)/python -m pytest $(if $(ARGS),bench $(ARGS),bench/bench_simulate.py --benchmark-json=$(KEPT))

# It carries kernels for x86-64-v3 and x86-64-v4, for the versions of Python and Numba of PYTHON's
# environment; `make ARGS=-Ckernels=none wheel` makes the wheel for all other machines.
wheel: $(VENV)/.test
	$(BIN)/python -m build --wheel --no-isolation --outdir dist $(ARGS)

# Each of `make smoke`, `make PYTHON=python3.13 smoke` installs the wheel in a new environment.
smoke: $(VENV)/.test
	rm -rf .cache/smoke
	$(BIN)/python -m build --quiet --wheel --outdir .cache/smoke/dist $(ARGS)
	$(PYTHON) -m venv .cache/smoke/env
	.cache/smoke/env/bin/python -m pip install --quiet "$$(echo .cache/smoke/dist/*.whl)[cli]"
	.cache/smoke/env/bin/python -P tests/installed.py

mutants: $(VENV)/.test
	$(BIN)/python tests/mutants.py $(ARGS)

clean:
	rm -rf $(VENV) docs/_build docs/figures docs/api/generated .cache .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist

# The file $(VENV)/.test records that the extra `test` is installed, and so on.  A change of
# pyproject.toml installs again.
$(VENV)/.%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable ".[$*]"
	@touch $@

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "bnmc needs Python >= 3.11: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
