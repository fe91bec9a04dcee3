# The same targets are used by people and by .ci/run. Only Python (3.11 or newer) and make are assumed.

VENV   := .venv
PY     := $(VENV)/bin/python
READY  := $(VENV)/.perdure-ready
# Workers of the test run. `logical` counts what the operating system offers.
JOBS   ?= logical
PYTEST := $(PY) -m pytest -n $(JOBS) --dist worksteal
ARGS   ?=
# The first interpreter that is new enough; override with PYTHON=/path/to/python.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$python && break; done)

# The bundled pyright would ask the network whether it is the newest.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-crash check lint types bench fmt clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z-]+):[^#]*## (.*)/  \1\t\2/' | expand -t 16

setup: $(READY) ## Create .venv and install the package with everything the other targets need

$(READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo "Perdure needs Python 3.11 or newer: make setup PYTHON=/path/to/python" >&2; exit 1; }
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[dev,postgres]'
	@touch $@

demo: $(READY) ## Process expense claims while killing the worker; ARGS="--input FILE --store URL ..."
	$(VENV)/bin/perdure demo $(ARGS)

test: $(READY) ## Run the whole suite on both stores, the crash explorer sampled; ARGS go to pytest
	$(PYTEST) $(ARGS)

test-crash: $(READY) ## Kill a real process at every point of every program, on both stores (takes long)
	PERDURE_EXPLORE=all $(PYTEST) tests/crash $(ARGS)

check: $(READY) ## Run the fast tests, without Postgres: under a minute
	$(PYTEST) -q -m 'not postgres' tests/unit tests/contract $(ARGS)

lint: $(READY) ## Check style, formatting and the direction of imports
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/lint-imports

types: $(READY) ## Check types
	$(VENV)/bin/pyright

bench: $(READY) ## Measure against peers on this machine; ARGS go to the runner
	$(PY) -m benchmarks.run $(ARGS)

fmt: $(READY) ## Format, and mend what the linter can mend by itself
	$(VENV)/bin/ruff format
	$(VENV)/bin/ruff check --fix

clean: ## Remove what the other targets made, .venv included
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .import_linter_cache .hypothesis .perdure
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
