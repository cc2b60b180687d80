# make install   .venv with the proxy and what its tests need
# make demo      a real vLLM on the CPU, the proxy in front, one decision (ARGS="--once --json")
# make test      everything CI runs: format, lint, types, all tests, the real vLLM included
FITS := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))
NAMES := python3.11 python3.12 python3.13 python3.14 python3
# the first of them that fits
PYTHON ?= $(firstword $(shell \
	for name in $(NAMES); do $$name -I -c '$(FITS)' && echo $$name; done 2>/dev/null; echo python3))
VENV := .venv
BIN := $(VENV)/bin

# what a shell sets for other Pythons is not for these
unexport PYTHONHOME PYTHONPATH
export PIP_USER := 0
export PIP_TARGET :=
export PIP_PREFIX :=

.PHONY: install demo test check format bench clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	@"$(PYTHON)" -I -c '$(FITS)' 2>/dev/null || { echo "Python 3.11 to 3.14 with its venv module is needed;" \
		"name one with: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "Installing the proxy into $(CURDIR)/$(VENV)" >&2
	@"$(PYTHON)" -I -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@$(BIN)/python -m pip install --quiet --editable . --group dev
	@touch $@

# standard output is for the answer alone
demo: install
	@$(BIN)/decision-proxy demo $(ARGS)

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: check
	$(BIN)/python -m pytest $(ARGS)

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install
	$(BIN)/python bench/splice.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
