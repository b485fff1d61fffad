# Everything runs in .venv, which these targets make. TORCH may name another build.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint check bench format clean

demo: $(VENV)/installed
	$(BIN)/covey train dqn CartPole-v1 --recipe apex --actors 2
	$(BIN)/covey eval

test: $(VENV)/dev
	$(BIN)/python -m pytest

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint
	$(BIN)/python -m pytest -q -m "not slow" -x

bench: $(VENV)/dev
	$(BIN)/covey bench serial

format: $(VENV)/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/torch:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH) numpy
	touch $@

$(VENV)/installed: $(VENV)/torch pyproject.toml hatch_build.py covey/memory/sumtree.c
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/dev: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
