# Everything a contributor runs. The first target that needs it fills .venv (llama-cpp-python is compiled from source:
# minutes, once).
PYTHON ?= python3.11
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup chat test lint format bench

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

chat: $(READY)
	$(BIN)/localdflash chat

test: $(READY)
	$(BIN)/pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy localdflash kernels tui lsp bench tests

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/localdflash bench --threads 2 --json bench/results/cpu.json
