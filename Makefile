# `make` alone lists the targets. Each makes the virtual environment it needs by itself.
#
#   PYTHON=python3.12   the interpreter of a new .venv, 3.11 or later; else python3, or the system's own if that is faster
#   ARGS="-x -k lease"  more arguments for what `test`, `demo` or `bench` runs
#   WORKERS=2           how many processes share the tests when all of them run
#   SEEDS=500000 FROM=0 how many histories `simulate` runs, and from which seed; REPLAY=4711 shows one
#   FASTSTREAM=0.7.8    the version that `test-faststream` tests with

# A python3 that was built from source without optimisations, as pyenv builds it, makes the tests take a tenth longer
# than the system's own: then that one, where it can make environments.
OPTIMISED := import sys, sysconfig; sys.exit(sys.prefix != "/usr" and "--enable-optimizations" not in sysconfig.get_config_var("CONFIG_ARGS"))
FIT := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
ifndef PYTHON
PYTHON := $(shell python3 -c '$(OPTIMISED)' 2>/dev/null || ! /usr/bin/python3 -c '$(FIT)' 2>/dev/null && echo python3 || echo /usr/bin/python3)
endif
ARGS    ?=
STORE   ?=
# More than there are cores: a good quarter of the time a process waits, for a lease or a server.
WORKERS ?= 4
SEED    ?=
FASTSTREAM ?= 0.7.8
EXAMPLES ?= 300
SEEDS ?= 20000
FROM ?= 0
REPLAY ?=
QUICK   ?=
SCENARIO ?=
PART    ?=
NAME    ?=
MINUTES ?= $(if $(SCENARIO)$(STORE),,58)
# Figures of everything go to the report; those of a part do not, unless a file is named.
RESULTS ?= $(if $(SCENARIO)$(STORE),,faults/results/runs.jsonl)
ONLY ?=

VENV := .venv
RUN  := $(VENV)/bin/python
DEMO := $(VENV)/.demo
DEV  := $(VENV)/.dev
BENCH := $(VENV)/.bench

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test coverage quick model simulate test-faststream check format bench faults compat reliability mutants constraints clean

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The tests start hundreds of processes: without bytecode each of them compiles everything again.
unexport PYTHONDONTWRITEBYTECODE

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(DEMO) ## Watch a small shop publish and receive its messages, on an SQLite file
	@$(RUN) -m examples.shop $(ARGS)

# A part is not worth several processes: each collects all tests first, and one store's run in a single one anyway.
test: $(DEV) ## Run every test (STORE=postgres: one store's)
	@$(RUN) -m pytest $(if $(STORE)$(ARGS),,-n $(WORKERS)) $(if $(STORE),-k $(STORE)) $(ARGS)

# Apart from `test`: on Python 3.11 tracing makes it take a third longer. What is ignored there waits for an exception
# raised in a thread, which does not come while the event loop is traced.
coverage: $(DEV) ## Run every test again and say which lines and branches none of them reaches
	@$(RUN) -m pytest --cov -n $(WORKERS) --ignore tests/broker/test_def_handlers.py $(ARGS)

# What a change breaks most often, without a server: for the inner loop.
quick: $(DEV) ## Run the units, and the contract on the memory and SQLite stores
	@$(RUN) -m pytest -n $(WORKERS) -q tests/unit tests/stores/memory tests/stores/sqlite $(ARGS)

# EXAMPLES=1000 tries more; STORE=redis takes one store.
model: $(DEV) ## Drive each store beside the memory store, for longer than the tests do
	@MODEL_EXAMPLES=$(EXAMPLES) $(RUN) -m pytest tests/model --timeout=3600 $(if $(STORE),-k $(STORE)) $(ARGS)

# SEEDS=500000 FROM=0 says which; REPLAY=4711 shows one to read; ARGS="--results faults/results/simulation.jsonl" adds
# what came of it to the report.
simulate: $(DEV) ## Simulate the engine on virtual time, with every fault there is, for longer than the tests do
	@$(RUN) -m tests.simulation $(if $(REPLAY),--replay $(REPLAY),--seeds $(SEEDS) --from $(FROM)) $(ARGS)

# An environment of its own, with everything but FastStream as in `constraints.txt`; `make clean` removes it too.
test-faststream: $(RUN) ## Run the broker's tests with another version of FastStream (FASTSTREAM=0.7.8)
	@set -eu; other="$(VENV)/faststream-$(FASTSTREAM)"; \
	test -x "$$other/bin/python" || $(RUN) -m venv "$$other"; \
	grep -v '^faststream==' constraints.txt > "$$other/constraints.txt"; \
	"$$other/bin/python" -m pip install -q -c "$$other/constraints.txt" -e '.[dev]' 'faststream==$(FASTSTREAM)'; \
	"$$other/bin/python" -m pytest tests/broker tests/faststream tests/relay tests/telemetry tests/typing tests/examples $(ARGS)

check: $(DEV) ## Check format, lint, types and imports: what CI checks before the tests
	@echo "format"; $(RUN) -m ruff format --check --quiet --diff .
	@echo "lint";   $(RUN) -m ruff check --quiet .
	@echo "types";  $(RUN) -m mypy --no-error-summary
	@echo "imports"; $(VENV)/bin/lint-imports --no-logo

format: $(DEV) ## Format the code and mend what the linter can mend
	@$(RUN) -m ruff check --quiet --fix-only .
	@$(RUN) -m ruff format --quiet .

# Each peer gets an environment of its own under .venv/peers the first time, pinned in benchmarks/adapters/requirements.
bench: $(BENCH) ## Measure Nightmail beside its peers (QUICK=1: three minutes; SCENARIO=drain STORE=postgres: a part)
	@$(RUN) -m benchmarks run $(if $(QUICK),--quick) $(SCENARIO:%=--scenario %) $(STORE:%=--store %) $(ARGS)

# With neither a scenario nor a store: the whole plan (ARGS=--plan shows it), as far as it fits into MINUTES, and its
# figures go to faults/results.
faults: $(DEV) ## Kill, freeze, cut off and restart everything, and check that nothing is lost (SCENARIO= STORE= SEED=)
	@$(RUN) -m faults $(if $(SCENARIO),--scenario $(SCENARIO)) $(if $(STORE),--store $(STORE)) \
		$(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(RESULTS),--results $(RESULTS)) $(ARGS)

# Gets what it needs into .venv/compat; ONLY="Postgres 18" tries one, ARGS="-- -x" goes to pytest.
compat: $(DEV) ## Run the conformance suite on other versions of servers and Python, and write docs/compatibility.md
	@$(RUN) -m compat $(if $(ONLY),--only "$(ONLY)") $(ARGS)

reliability: $(BENCH) ## Write RELIABILITY.md and its plots from the results of `make faults` and `make simulate`
	@$(RUN) -m faults.report

# PART=redis takes one part of the product, NAME=lease those with that in their name.
mutants: $(DEV) ## Break the product in a hundred places, one at a time, and check that a test notices (PART= NAME=)
	@$(RUN) -m mutants $(if $(PART),--part $(PART)) $(if $(NAME),--name "$(NAME)") $(ARGS)

constraints: $(RUN) ## Resolve all dependencies again and write constraints.txt
	@set -eu; fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; \
	echo "resolving"; $(RUN) -m venv "$$fresh"; "$$fresh/bin/python" -m pip install -q -e '.[dev,bench]'; \
	{ echo "# Exact versions of the development environment. Written by \`make constraints\`."; \
	  "$$fresh/bin/python" -m pip freeze --exclude-editable; } > "$$fresh/constraints.txt"; \
	cp "$$fresh/constraints.txt" constraints.txt

clean: ## Remove the virtual environment, caches and build results
	@rm -rf $(VENV) build dist htmlcov .coverage .coverage.* .hypothesis .import_linter_cache \
		.mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUN):
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not installed; PYTHON=... picks another" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or later is needed, $(PYTHON) is $$($(PYTHON) -V 2>&1); PYTHON=... picks another" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$(PYTHON) cannot make virtual environments; on Debian: apt install python3-venv" >&2; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) -V)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# The stamps: installed again when a dependency or its version changes.
$(DEMO): pyproject.toml constraints.txt | $(RUN)
	@echo "installing what the demo needs"
	@$(RUN) -m pip install -q -c constraints.txt -e '.[sqlalchemy,sqlite]'
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(RUN)
	@echo "installing what tests and checks need (about a minute the first time)"
	@$(RUN) -m pip install -q -c constraints.txt -e '.[dev]'
	@touch $(DEMO) $@

$(BENCH): $(DEV)
	@echo "installing what the benchmarks need besides"
	@$(RUN) -m pip install -q -c constraints.txt -e '.[dev,bench]'
	@touch $@
