# Every target creates the virtual environment if needed. `make help` lists the targets.

PYTHON ?= $(shell for candidate in python3.11 python3.12 python3.13 python3; do \
	if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then echo $$candidate; break; fi; done)
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check

# The tests start many Python processes. Without .pyc files, each of them would compile the whole source again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv run demo test check format e2e torture torture-runtime sim bench mutants mutation model lock clean

help:  ## List the targets.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "Variables, used as in 'make sim SEEDS=0:100':"
	@awk -F '#= ' '/^#= / { print "  " $$2 }' Makefile

#= RUNTIME=crio        e2e: only the tests of this runtime [default: all].
#=                     torture-runtime: runtime to kill [default: containerd].
#= ROUNDS=200          torture [default: 200], torture-runtime [default: 50].
#= SEED=N              torture, torture-runtime, mutation: repeat a run.
#= SEEDS=0:20 HOURS=6  sim: seeds to run, and virtual hours per seed.
#= PODS=1000           bench: number of pods.
#= ROOM=engine/status  mutation: packages or modules to change.
#= SAMPLE=300          mutation: number of bugs to insert [default: all].
#= DESCRIPTION=FILE    model: OpenAPI description (openapi.json.gz).

venv: $(READY)  ## Create the virtual environment (done automatically).

$(READY): pyproject.toml requirements.lock
	@if [ -z "$(PYTHON)" ]; then \
		echo "Python 3.11 or newer not found. Install it or set PYTHON:"; \
		echo "  Debian, Ubuntu: apt-get install python3 python3-venv    Fedora: dnf install python3.11"; \
		echo "  PYTHON:         make $(or $(MAKECMDGOALS),venv) PYTHON=/path/to/python3.11"; exit 1; fi
	@if ! $(PYTHON) -c 'import venv, ensurepip' >/dev/null 2>&1; then \
		echo "$(PYTHON) has no venv module."; \
		echo "  Debian, Ubuntu: apt-get install python3-venv    then run make again"; exit 1; fi
	@echo "creating $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv --clear $(VENV)
	@if ! { $(PIP) --require-hashes --only-binary :all: --requirement requirements.lock && \
		$(PIP) --no-deps --no-build-isolation --editable .; }; then \
		echo "cannot install the dependencies: pip needs a Python package index."; \
		echo "  Behind a proxy or mirror, set HTTPS_PROXY or configure pip, then run make again."; exit 1; fi
	@touch $@

run: $(READY)  ## Run the pods of examples/ until Ctrl-C.
	@$(BIN)/python -m tools.examples build/examples
	@$(BIN)/podkeeper run build/examples

demo: $(READY)  ## Simulate an hour of a node in a few seconds.
	@$(BIN)/podkeeper demo

check: $(READY)  ## Check format, lint, types and architecture.
	@$(BIN)/ruff format --check --quiet . || { echo "some files are not formatted; run 'make format'"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/pytest tests/test_architecture.py

format: $(READY)  ## Format the code and fix lint errors.
	@$(BIN)/ruff check --quiet --fix --exit-zero .
	@$(BIN)/ruff format .

# The parts run in parallel, because most tests wait more than they compute. Each part prints its output at its end.
# A part is a path, or several joined by a plus. It excludes the parts below it, so `tests` has all other tests.
# Parts with long waits come first, short ones last.
# Each part is one process. With pytest-xdist, every worker would collect all tests and report to a controller.
# tests/runtimes/process must be a separate part, because its tests enter namespaces, which fails in a process with threads
# (such as gRPC's).
PARTS := tests/contracts tests/runtimes+tests/streams tests/sim tests tests/runtimes/process tests/app tests/engine tests/rules tests/sim/test_sieve.py
PATHS := $(subst +, ,$(PARTS))

# Most tests write small files and sync them, which is faster in memory. Real containers run from a disk, as usual.
IN_MEMORY := $(filter-out tests/contracts% tests/runtimes%,$(PARTS))
MEMORY = $(or $(TMPDIR),$(shell if [ -w /dev/shm ] && [ "$$(df --output=avail /dev/shm | tail -1)" -gt 1000000 ] && \
	! grep -q ' /dev/shm .*noexec' /proc/mounts; then echo /dev/shm; fi))

test:  ## Run check and all fast tests.
	@PY_COLORS=$(if $(MAKE_TERMOUT),1,0) $(MAKE) --no-print-directory --jobs=6 --keep-going --output-sync=target check $(addprefix part/,$(PARTS))

$(addprefix part/,$(PARTS)): part/%: $(READY)
	@echo "$(subst +, and ,$*)$(if $(filter tests,$*), (the rest)):"
	@$(if $(filter $*,$(IN_MEMORY)),$(addprefix TMPDIR=,$(MEMORY))) $(BIN)/pytest -m "not slow" $(subst +, ,$*) $(addprefix --ignore ,$(filter $(addsuffix /%,$(subst +, ,$*)),$(PATHS)) $(if $(filter tests,$*),tests/test_architecture.py))

# More workers than cores, because most of these tests wait more than they compute.
e2e: $(READY)  ## Run the slow tests with real components.
	@$(if $(RUNTIME),PODKEEPER_TEST_RUNTIME=$(RUNTIME)) $(BIN)/pytest -m slow $(if $(RUNTIME),-k $(RUNTIME)) -rs -n 3 --dist worksteal --ignore tests/runtimes/process

torture: $(READY)  ## Kill the agent at random times under load.
	@$(BIN)/python -m tools.torture --rounds $(or $(ROUNDS),200) $(if $(SEED),--seed $(SEED))

torture-runtime: $(READY)  ## Kill the runtime at random times under load (as root).
	@$(BIN)/python -m tools.torture_runtime --runtime $(or $(RUNTIME),containerd) --rounds $(or $(ROUNDS),50) $(if $(SEED),--seed $(SEED))

sim: $(READY)  ## Simulate nodes with random faults (docs/simulation.md).
	@$(BIN)/podkeeper sim --seeds $(or $(SEEDS),0:20) --hours $(or $(HOURS),6)

bench: $(READY)  ## Measure rules and engine (docs/performance.md).
	@$(BIN)/python -m bench.rules
	@$(BIN)/python -m bench.engine --pods $(or $(PODS),1000) --idle-seconds $(or $(IDLE_SECONDS),10)

mutants: $(READY)  ## Insert known bugs and show which tests detect them.
	@$(BIN)/python -m tools.mutants --by $(or $(BY),both)

mutation: $(READY)  ## Insert random bugs in ROOM and show the undetected ones.
	@test -n "$(ROOM)" || { echo "ROOM is not set; use 'make mutation ROOM=engine/status' or 'make mutation ROOM=\"rules engine\" SAMPLE=300 SEED=1'"; exit 1; }
	@$(BIN)/python -m tools.mutation $(ROOM) --sample $(or $(SAMPLE),0) --seed $(or $(SEED),1) $(if $(BUDGET),--budget $(BUDGET)) $(if $(TESTS),--tests $(TESTS))

model: $(READY)  ## Generate src/podkeeper/model/k8s from DESCRIPTION.
	@test -n "$(DESCRIPTION)" || { echo "DESCRIPTION is not set; use 'make model DESCRIPTION=path/to/openapi.json.gz'"; exit 1; }
	@$(BIN)/python -m tools.generate_model $(DESCRIPTION)

lock:  ## Update requirements.lock to the newest versions.
	@$(PYTHON) -m venv build/lock-venv && build/lock-venv/bin/pip install --quiet --disable-pip-version-check uv
	@build/lock-venv/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --extra dev \
		--generate-hashes --no-emit-index-url --no-header --output-file requirements.lock pyproject.toml

clean:  ## Remove the virtual environment and caches.
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
