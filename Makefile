# Two commands do everything on a fresh machine with Python 3.11 and make: `make demo` and `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest
PG_BIN ?=
# Each process of the tests has servers of its own.
JOBS   ?= 2
export PG_BIN

.DEFAULT_GOAL := help
.PHONY: help setup demo dev test quick format lint types architecture unit bench faults scale browser clean

help:  ## show the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed; set PYTHON=..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,test]'
	$(BIN)/python -m compileall -q $(VENV)/lib >/dev/null || true
	@touch $@

setup: $(STAMP)  ## install everything into .venv

demo: setup  ## start afresh, archive, verify and delete a sample, and print the proof
	$(BIN)/retention demo

dev: setup  ## open the UI, the daemon and the servers together; Ctrl-C stops them together
	$(BIN)/retention dev

test: setup format lint types architecture  ## everything that CI runs
	$(PYTEST) -q -n $(JOBS) --dist loadfile --no-loadscope-reorder

quick: setup lint types  ## the tests that need no server
	$(PYTEST) -q retention_pipeline_tests/unit

format: setup
	$(BIN)/ruff format --check .

lint: setup
	$(BIN)/ruff check .
	$(BIN)/deptry .

types: setup
	$(BIN)/mypy

architecture: setup
	$(BIN)/lint-imports

bench: setup  ## ratios measured in one run, against the parts' own limits (SHORT=1: only that it runs)
	$(BIN)/python -m retention_pipeline_tests.benchmarks $(if $(SHORT),--short)

faults: setup  ## kill, cut and corrupt at every seam, and count what is lost
	$(PYTEST) -q -m "slow or not slow" retention_pipeline_tests/faults

scale: setup  ## a few due rows beside 5,000,000 that are not: no scan, and a batch costs what it costs alone
	$(PYTEST) -q -m slow retention_pipeline_tests/integration/test_scale.py retention_pipeline_tests/integration/test_exactly.py

browser: setup  ## look at the demo's history in a real browser (Debian's chromium), and take pictures
	$(BIN)/python -m retention_pipeline_tests.acceptance.browser

clean: ## remove servers' state, caches and the demo's results
	@test ! -x $(BIN)/python || $(BIN)/python -m retention_pipeline.dev.cleaning .retention
	rm -rf .retention .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
