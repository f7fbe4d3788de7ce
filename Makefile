# Everything runs in .venv, made on demand. `make` alone lists the targets.
#
#   TORCH_INDEX   extra package index for torch, e.g. PyTorch's public CPU builds, which spare a machine without a GPU
#                 gigabytes of CUDA:  make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu
#                 Empty: whatever pip is configured with.
#   PYTHON        interpreter to make .venv with; default: the first of 3.11 or newer that is found
#   ARGS          passed on to pytest (test, test-all, bench), to `dsv4lab` (demo, lab), or to mkdocs (docs)

TORCH_INDEX ?=
PYTHON ?=
ARGS ?=

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
INPUTS := pyproject.toml constraints.txt
# For a torch that brings none, such as the CPU builds: kernels are compiled and interpreted in the tests.
TRITON := triton==3.6.0

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20
	@echo
	@sed -n 's/^#  \?//p' Makefile

.venv/pyvenv.cfg:
	@$(SHELL) scripts/make-venv "$(PYTHON)"

.venv/base.stamp: .venv/pyvenv.cfg $(INPUTS)
	@echo "installing dsv4lab and torch into .venv (minutes the first time) ..."
	@$(PIP) -e .
	@$(BIN)/dsv4lab run --preset tiny --max-new-tokens 2 --json > /dev/null
	@touch $@

.venv/notebook.stamp: .venv/base.stamp
	@echo "installing JupyterLab into .venv ..."
	@$(PIP) -e '.[notebook]'
	@touch $@

.venv/dev.stamp: .venv/notebook.stamp
	@echo "installing the test tools into .venv ..."
	@$(PIP) -e '.[dev]'
	@$(BIN)/python -c 'import triton' 2>/dev/null || $(PIP) '$(TRITON)'
	@touch $@

.PHONY: venv
venv: .venv/dev.stamp ## make .venv with everything in it

.PHONY: demo
demo: .venv/base.stamp ## tune the demo model on this CPU: sweep, profile, correctness, report.html (3 minutes)
	@$(BIN)/dsv4lab tune --preset demo --plans off,hip,cuda --hw-queues 1,2,4 --concurrency 1,4 $(ARGS)

.PHONY: lab
lab: .venv/notebook.stamp ## open JupyterLab on the tour notebook
	@$(BIN)/dsv4lab lab $(ARGS)

.PHONY: test
test: .venv/dev.stamp ## what CI runs: all tests but the long ones, GPU ones where there is a GPU
	@$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow and not bench" $(ARGS)

.PHONY: test-all
test-all: .venv/dev.stamp ## the long tests too
	@$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not bench" $(ARGS)

.PHONY: bench
bench: .venv/dev.stamp ## every wall-clock figure, as ratios within one run
	@$(BIN)/python -m pytest -q -m bench --bench -s $(ARGS)

.PHONY: docs
docs: .venv/dev.stamp ## build the docs site into site/, warnings as errors; open site/index.html
	@# not --quiet: that hides warnings from --strict
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)

.PHONY: docs-serve
docs-serve: .venv/dev.stamp ## the docs site with its search on http://127.0.0.1:8000, rebuilt when a page changes
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve $(ARGS)

.PHONY: gallery
gallery: .venv/dev.stamp ## run the notebooks and record what they show for the docs (ARGS="40_read_a_trace": only that one)
	@$(BIN)/python tools/site/record.py $(ARGS)

.PHONY: lint
lint: .venv/dev.stamp ## ruff, mypy --strict, import contracts
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

.PHONY: format
format: .venv/dev.stamp ## let ruff fix and format the tree
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

.PHONY: clean
clean: ## remove .venv and caches; captures in traces/ stay
	rm -rf .venv site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
