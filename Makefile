# Two commands: `make demo` shows what the package does, `make test` checks that it does it. Both set everything up.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
OUT ?= runs/demo

.PHONY: demo test lint libero clean help

help:
	@echo "make demo   fit and compare the tokenizers on embedded data, write a report (about 3 minutes)"
	@echo "make test   lint, type-check and run all tests (under 10 minutes)"
	@echo "make libero add the LIBERO benchmark to the simulator; its tests then run too"
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
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,sim,serve,policy]'
	@touch $@

# LIBERO asks for torch, wandb, robomimic and more, which its simulator never imports: without its dependencies, then,
# and with the few that it does import.
LIBERO := hf-libero==0.1.4 bddl==1.0.1 cloudpickle==3.1.2 easydict==1.13 farama-notifications==0.0.6 future==1.0.0 gymnasium==1.4.0

.venv/libero: .venv/developer
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps $(LIBERO)
	@touch $@

libero: .venv/libero
	@echo 'LIBERO is installed. Its assets: set ACTIONPIECE_LIBERO_ASSETS to a folder with them, or run'
	@echo '$(BIN)/hf download lerobot/libero-assets --repo-type dataset --local-dir ~/.cache/libero/assets'

demo: .venv/package
	$(BIN)/actionpiece compare --data recorded --tokenizers binning,fast,spline,pq,pq:blend=0.75:groups=balanced,small --out $(OUT)
	@echo "Open $(OUT)/report.html in a browser."

# Pictures of the simulator need an OpenGL that works without a screen. Where there is none and we may, install one.
.venv/opengl: .venv/developer
	@$(BIN)/python -c 'from actionpiece.sim.rendering import choose_backend; print(choose_backend().line)' 2>/dev/null \
	|| (apt-get -qq update && apt-get -qq install -y libegl1 libgl1-mesa-dri libosmesa6 > /dev/null) \
	|| echo "No OpenGL without a screen: tests of pictures are skipped. On Debian: apt install libegl1 libgl1-mesa-dri libosmesa6"
	@touch $@

lint: .venv/developer
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint .venv/opengl
	$(BIN)/pytest -n 2 -rs

clean:
	rm -rf .venv runs .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
