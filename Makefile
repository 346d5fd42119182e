# Two commands: `make demo` shows what the package does, `make test` checks that it does it. Both set everything up.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
OUT ?= runs/demo

.PHONY: demo test lint clean help

help:
	@echo "make demo   fit and compare the tokenizers on embedded data, write a report (about 3 minutes)"
	@echo "make test   lint, type-check and run all tests (under 10 minutes)"
	@echo "make clean  remove the environment and what the commands wrote"

.venv/created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; this is " + sys.version.split()[0])'
	$(PYTHON) -m venv .venv
	@touch $@

# torch first and pinned: whatever resolves it again later finds it there.
.venv/package: .venv/created pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	@touch $@

.venv/developer: .venv/package
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,sim]'
	@touch $@

demo: .venv/package
	$(BIN)/actionpiece compare --data generated --tokenizers binning,fast,spline,pq,pq:blend=0.75:groups=balanced,small --out $(OUT)
	@echo "Open $(OUT)/report.html in a browser."

lint: .venv/developer
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -n 2 -rs

clean:
	rm -rf .venv runs .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
