# Two commands do all the set-up: `make quickstart` and `make test`.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
seed ?= 1

.PHONY: quickstart test check docs fix

$(VENV)/.run: pyproject.toml constraints-cpu.txt
	@command -v $(PYTHON) >/dev/null || { echo "AstraFlow needs Python 3.11 or newer: make PYTHON=python3 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints-cpu.txt torch
	$(BIN)/pip install --quiet --constraint constraints-cpu.txt --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	$(BIN)/pip install --quiet --constraint constraints-cpu.txt --editable ".[dev]"
	@touch $@

quickstart: $(VENV)/.run  ## learn in minutes, by the whole asynchronous system
	$(BIN)/astraflow run examples/quickstart.yaml seed=$(seed)

test: $(VENV)/.dev  ## every test
	$(BIN)/python -m pytest

check: $(VENV)/.dev  ## what CI checks besides the tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mdformat --check README.md AGENTS.md docs examples

docs: $(VENV)/.dev  ## the documentation, in build/docs; a warning is an error
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs

fix: $(VENV)/.dev  ## mend what can be mended by itself
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/mdformat README.md AGENTS.md docs examples
