# `make serve` and `make test` set up all they need in .venv by themselves.
# PYTHON chooses the interpreter; PORT, HOST, QUEEN_DATA_DIR and all other variables reach the server.

BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup serve bench test lint format clean

help:
	@echo "make serve    run Queen with its bundled PostgreSQL (Ctrl-C stops)"
	@echo "make bench    measure throughput and latency (BENCH='--only push-*' passes options; docs/benchmark.md)"
	@echo "make test     run linters, types and every test"
	@echo "make lint     only linters and types"
	@echo "make format   rewrite the code in the house format"
	@echo "make clean    remove .venv and everything that tools have written"

setup:
	@.ci/setup test

serve:
	@.ci/setup serve
	@exec $(BIN)/queen serve

# The plot needs more packages; without them everything else is measured and written all the same.
bench:
	@.ci/setup serve
	@$(BIN)/python -c 'import matplotlib, procrastinate, psycopg' 2>/dev/null || \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	    --no-build-isolation --editable '.[bench]' || true
	@$(BIN)/queen bench $(BENCH)

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/pytest

format: setup
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf .venv .cache .hypothesis .pytest_cache .mypy_cache .ruff_cache .import_linter_cache build dist src/*.egg-info
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
