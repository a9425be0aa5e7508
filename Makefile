# One door: `make` lists the verbs.  Each does its own set-up, from PyPI alone, and works on a
# fresh clone with nothing but Python 3.11+ and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Thousands of processes start here: each would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the verbs
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  \1\t/' | expand -t 12

.PHONY: setup
setup: $(STAMP) ## Make .venv with everything pinned

$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Millrace needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $(STAMP)

.PHONY: demo
demo: $(STAMP) ## Five nodes, a million records counted by Spark, one node killed: prove nothing was lost
	$(BIN)/python -m millrace.demo

# Two lanes share the cores: tests of real processes, which wait most of their time, and those that
# only compute, which get what the first leave.  What measures, or has a time limit that a busy
# machine could break, is marked `alone`; it and whatever is in no lane run by themselves.
QUIET := $(addprefix tests/,client codec conformance core meta runtime scenario server sim store tidy)
SIMULATED := $(addprefix tests/sim/,test_canaries.py test_seeds.py test_documents_worlds.py test_changes_worlds.py)
PROCESSES := $(addprefix tests/,spark/logs docs bench/test_bench_spark_run.py integration spark cli)

# What writes and follows runs on a master with two workers, as with users who have more than one
# machine; the rest of Spark's tests in one process.
STANDALONE := $(addprefix tests/spark/,buckets changes pipelines sink)
ELSEWHERE := $(addprefix --ignore=,$(STANDALONE))

.PHONY: test
test: $(STAMP) ## Run every test
	$(MAKE) --jobs 2 test-computing test-processes
	$(BIN)/python -m pytest -m alone tests/sim tests/store $(PROCESSES) $(ELSEWHERE)
	$(BIN)/python -m pytest tests/bench --ignore=tests/bench/test_bench_spark_run.py

.PHONY: test-computing
test-computing: check
	nice -n 19 $(BIN)/python -m pytest --numprocesses 2 --dist worksteal -m 'not alone' $(QUIET) $(addprefix --ignore=,$(SIMULATED))
	nice -n 19 $(BIN)/python -m pytest -m 'not alone' $(SIMULATED)

.PHONY: test-processes
test-processes: $(STAMP)
	$(BIN)/python -m pytest --spark standalone $(STANDALONE)
	$(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder -m 'not alone' $(PROCESSES) $(ELSEWHERE)

.PHONY: explore
explore: $(STAMP) ## Run the property tests with examples that nobody has seen
	$(BIN)/python -m pytest --hypothesis-profile=exploring -m hypothesis

.PHONY: check
check: $(STAMP) ## Types, lint, format, generated docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m millrace.cli.reference --check

.PHONY: sim
sim: $(STAMP) ## Simulate a thousand seeds
	$(BIN)/millrace sim run --seeds 1000

.PHONY: bench
bench: $(STAMP) ## Measure against NATS JetStream and the machine's limits, in one run
	$(BIN)/python -m bench all

.PHONY: docs
docs: $(STAMP) ## Generate the reference pages
	$(BIN)/python -m millrace.cli.reference

.PHONY: lock
lock: $(STAMP) ## Pin all dependencies anew
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --extra dev --extra etcd --extra demo --extra pipelines --universal --python-version 3.11 --generate-hashes --no-header --upgrade -o requirements.lock

.PHONY: clean
clean: ## Remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis bench/.peers build dist
