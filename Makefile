# One door each. Every target sets up what it needs; `make help` lists them.

PYTHON ?= $(shell for candidate in python3.11 python3.12 python3.13 python3; do \
	if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then echo $$candidate; break; fi; done)
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Without compiled files each of the many Python processes that the tests start compiles the whole source again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv run demo test check format e2e torture torture-runtime sim bench mutants mutation model lock clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile

venv: $(READY)  ## set up the virtual environment (every target does so by itself)

$(READY): pyproject.toml requirements.lock
	@if [ -z "$(PYTHON)" ]; then \
		echo "podkeeper needs Python 3.11 or newer, and none was found."; \
		echo "  Debian, Ubuntu: apt-get install python3 python3-venv    Fedora: dnf install python3.11"; \
		echo "  or name one:    make $(or $(MAKECMDGOALS),venv) PYTHON=/path/to/python3.11"; exit 1; fi
	@if ! $(PYTHON) -c 'import venv, ensurepip' >/dev/null 2>&1; then \
		echo "$(PYTHON) has no venv module."; \
		echo "  Debian, Ubuntu: apt-get install python3-venv    then call make again"; exit 1; fi
	@echo "setting up $(VENV) with $(PYTHON) (once)"
	@$(PYTHON) -m venv --clear $(VENV)
	@if ! { $(PIP) --require-hashes --only-binary :all: --requirement requirements.lock && \
		$(PIP) --no-deps --no-build-isolation --editable .; }; then \
		echo "installing the dependencies failed: pip must reach a Python package index"; \
		echo "  (behind a proxy or mirror: set HTTPS_PROXY or configure pip), then call make again"; exit 1; fi
	@touch $@

run: $(READY)  ## run the pods of examples/ for real, until Ctrl-C
	@$(BIN)/python -m tools.examples build/examples
	@$(BIN)/podkeeper run build/examples

demo: $(READY)  ## watch a simulated node live through an hour of pods, in seconds
	@$(BIN)/podkeeper demo

check: $(READY)  ## format, lint, types, architecture: under a minute, offline
	@$(BIN)/ruff format --check --quiet . || { echo "not formatted: run 'make format'"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/pytest tests/test_architecture.py

format: $(READY)  ## put all code into the house's format
	@$(BIN)/ruff check --quiet --fix --exit-zero .
	@$(BIN)/ruff format .

# Parts run at the same time: while one waits, the others have the cores. Each prints its output when it ends. A part is
# a path, or several with a plus, and leaves out the parts below it, so `tests` is all that has no part of its own.
# Parts that wait come first, short ones last.
# Each is one process: workers of pytest-xdist would each collect all tests, and report each result to a controller.
# tests/runtimes/process must be a part: its tests enter namespaces, which no process with threads (gRPC's) can do.
# Contracts and runtimes are one part: they share a containerd.
PARTS := tests/contracts+tests/runtimes tests/app tests/runtimes/process tests tests/sim tests/engine tests/rules tests/sim/test_sieve.py
PATHS := $(subst +, ,$(PARTS))

test:  ## check plus all fast tests, the recorded traces among them
	@PY_COLORS=$(if $(MAKE_TERMOUT),1,0) $(MAKE) --no-print-directory --jobs=4 --keep-going --output-sync=target check $(addprefix part/,$(PARTS))

$(addprefix part/,$(PARTS)): part/%: $(READY)
	@echo "$(subst +, and ,$*)$(if $(filter tests,$*), (the rest)):"
	@$(BIN)/pytest -m "not slow" $(subst +, ,$*) $(addprefix --ignore ,$(filter $(addsuffix /%,$(subst +, ,$*)),$(PATHS)) $(if $(filter tests,$*),tests/test_architecture.py))

# More workers than cores: most of these tests wait more than they work.
e2e: $(READY)  ## the slow tests: real things (each says why when it is skipped), every crash of five lives; RUNTIME=crio: those on CRI-O
	@$(if $(RUNTIME),PODKEEPER_TEST_RUNTIME=$(RUNTIME)) $(BIN)/pytest -m slow $(if $(RUNTIME),-k $(RUNTIME)) -rs -n 3 --dist worksteal --ignore tests/runtimes/process

torture: $(READY)  ## kill the agent at random moments under a running workload: ROUNDS=200 (SEED=N: the same deeds again)
	@$(BIN)/python -m tools.torture --rounds $(or $(ROUNDS),200) $(if $(SEED),--seed $(SEED))

torture-runtime: $(READY)  ## kill containerd, or RUNTIME=crio, at random moments under a running workload (root): ROUNDS=50 (SEED=N)
	@$(BIN)/python -m tools.torture_runtime --runtime $(or $(RUNTIME),containerd) --rounds $(or $(ROUNDS),50) $(if $(SEED),--seed $(SEED))

sim: $(READY)  ## play whole nodes from seeds under all kinds of trouble: SEEDS=0:20 HOURS=6 (docs/simulation.md)
	@$(BIN)/podkeeper sim --seeds $(or $(SEEDS),0:20) --hours $(or $(HOURS),6)

bench: $(READY)  ## measure the rules, and the engine with PODS pods [1000] (figures: docs/performance.md)
	@$(BIN)/python -m bench.rules
	@$(BIN)/python -m bench.engine --pods $(or $(PODS),1000) --idle-seconds $(or $(IDLE_SECONDS),10)

mutants: $(READY)  ## plant known small bugs one by one and show which test and which seed catches each
	@$(BIN)/python -m tools.mutants --by $(or $(BY),both)

mutation: $(READY)  ## plant small bugs in ROOM=engine/status (any packages or modules) and show those no fast test notices: SAMPLE=300 SEED=1
	@test -n "$(ROOM)" || { echo "say what to mutate: make mutation ROOM=engine/status, or ROOM=\"rules engine\" SAMPLE=300 SEED=1"; exit 1; }
	@$(BIN)/python -m tools.mutation $(ROOM) --sample $(or $(SAMPLE),0) --seed $(or $(SEED),1) $(if $(BUDGET),--budget $(BUDGET)) $(if $(TESTS),--tests $(TESTS))

model: $(READY)  ## regenerate src/podkeeper/model/k8s: make model DESCRIPTION=path/of/openapi.json.gz
	@test -n "$(DESCRIPTION)" || { echo "say which: make model DESCRIPTION=path/of/kubernetes-openapi-v2.json.gz"; exit 1; }
	@$(BIN)/python -m tools.generate_model $(DESCRIPTION)

lock:  ## update requirements.lock: the newest versions of all dependencies, with hashes
	@$(PYTHON) -m venv build/lock-venv && build/lock-venv/bin/pip install --quiet --disable-pip-version-check uv
	@build/lock-venv/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --extra dev \
		--generate-hashes --no-emit-index-url --no-header --output-file requirements.lock pyproject.toml

clean:  ## remove the virtual environment and caches
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
