# `make help` lists the targets. Each target installs the packages it needs when it is first used.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON := .venv/bin/python
UV     := $(or $(shell command -v uv),.uv/bin/uv)
SWEEP  := batch=8,16,32
# The programs `gpu_*` need an NVIDIA GPU.
BENCHES := $(filter-out benchmarks/accuracy/gpu_%,$(wildcard $(addprefix benchmarks/,accuracy/*.py cost/*.py decisions/*.py)))
BENCH_PATH := src:tests:benchmarks

# One process per core, at most four: with more, tests that measure known times wait for the processor.
# ARGS="-n0 tests/config/test_job.py" runs one file in one process, for a debugger.
# Files start in the order of tests/conftest.py: long ones first, so that all processes end at about the same time.
# The system tests wait for their commands a third of the time, so that three processes use two cores fully.
BY_FILE  := --dist loadscope --no-loadscope-reorder
PARALLEL := -n logical --maxprocesses 4 $(BY_FILE)
WAITING  := -n 3 $(BY_FILE)
# Without this variable, pytest caches the assertions that it rewrites. Rewriting takes seconds per process.
PYTEST   := env -u PYTHONDONTWRITEBYTECODE $(PYTHON) -m pytest
# Exit status of pytest if ARGS select none of the tests.
NONE_SELECTED := 5

# requirements.lock has the packages for training and reports, requirements-dev.lock those of all extras and of `make docs`.
# On a Jetson, training uses NVIDIA's torch outside .venv, and requirements-board.lock has those of the controller.
JETSON := $(wildcard /etc/nv_tegra_release)
LOCK   := $(if $(JETSON),requirements-board.lock,requirements.lock)
extra   = .venv/.with-$(1)

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:.*## /\t/' | expand -t 14
	@echo; echo 'Arguments go in ARGS:  make train ARGS="model=lenet batch=32"'

##### Run

train: setup ## train once as configured, then show times and energy per epoch
	$(PYTHON) src/train.py $(ARGS)

sweep: setup ## train once for each combination of values (ARGS="batch=8,16,32 workers=0,4")
	$(PYTHON) src/train.py -m $(or $(ARGS),$(SWEEP))

# One server process and no job execution: 2 processes in place of 15.
ui: setup $(if $(JETSON),$(call extra,ui)) ## show the runs in MLflow
	MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false .venv/bin/mlflow ui --workers 1 $(ARGS)

tensorboard: setup $(call extra,tensorboard) ## show the runs made with tracking.tensorboard=true in TensorBoard
	.venv/bin/tensorboard --logdir multirun --host 127.0.0.1 $(ARGS)

watch: setup ## watch the running, else the newest run or sweep in the terminal (ARGS=FOLDER: another one)
	$(PYTHON) src/watch.py $(ARGS)

report: setup ## evaluate the last sweep (ARGS="sweep=...") and write its HTML report
	$(PYTHON) src/report.py $(ARGS)

doctor: setup ## list what this machine can measure and set, with reasons and remedies
	$(PYTHON) src/doctor.py $(ARGS)

validate: setup ## compare what this machine measures with what is known (ten minutes; ARGS="minutes=3 settings=true")
	$(PYTHON) src/validate.py $(ARGS)

slurm-demo: setup $(call extra,slurm) ## run a sweep on a real Slurm cluster of two nodes on this machine
	PYTHONPATH=$(BENCH_PATH) $(PYTHON) benchmarks/robustness/slurm_demo.py $(ARGS)

publish: setup ## add to MLflow the runs and metrics that it lacks
	$(PYTHON) src/publish.py $(ARGS)

bench: setup $(call extra,dev) ## run the benchmarks and print their tables (ARGS=--short: a quick check; --write: also into files)
	@failed=(); for bench in $(BENCHES); do PYTHONPATH=$(BENCH_PATH) $(PYTHON) $$bench $(ARGS) || \
	failed+=($$bench); done; [[ -z $${failed[*]} ]] || { echo >&2 "error: failed: $${failed[*]}"; exit 1; }

faults: setup $(call extra,dev) ## inject faults into runs and count lost results (hours; ARGS="--each 1")
	PYTHONPATH=$(BENCH_PATH) $(PYTHON) benchmarks/robustness/faults.py $(ARGS)

mutants: setup $(call extra,dev) ## check that the tests detect wrong code (a quarter of an hour; ARGS=record: some files)
	$(PYTHON) tests/mutants.py $(ARGS)

##### Check

test: setup $(call extra,dev) ## run the tests
	$(PYTEST) $(PARALLEL) $(ARGS)

test-system: setup py36 py38 py310 $(call extra,dev) ## run the tests that need a server, a browser, another Python or root
	$(PYTEST) -m 'system and not alone' --durations=30 $(WAITING) $(ARGS) || [[ $$? == $(NONE_SELECTED) ]]
	$(PYTEST) -m 'system and alone' $(ARGS) || [[ $$? == $(NONE_SELECTED) ]]

# Further libraries of hosts are in a folder of their own; hosts whose library cannot be installed are skipped.
test-hosts: setup $(call extra,dev) .hosts/.synced ## run long tests: many scripts bare and measured, sequences of events, benchmarks (two hours)
	SEQUENCES=100000 $(PYTEST) -n logical tests/segmentation/test_invariants.py
	$(PYTEST) -m nightly -n 2 $(ARGS) || [[ $$? == $(NONE_SELECTED) ]]
	$(PYTEST) -m 'hosts and not system' $(ARGS) || [[ $$? == $(NONE_SELECTED) ]]

.hosts/.synced: tests/hosts/packages.txt
	@$(MAKE) --quiet $(UV)
	@mkdir -p .hosts
	@while read -r package; do $(UV) pip install --quiet --python $(PYTHON) --target .hosts --no-deps "$$package" || \
	echo "Without $$package, its hosts are skipped."; done < $<
	@touch $@

docs: setup $(call extra,docs) ## build the documentation site in site/ and check its links
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict
	@echo 'Built site/index.html, which can be opened as a file.'

lint: setup $(call extra,dev) ## check style, format and types
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy

##### Set up

setup: .venv/.synced .venv/.compiled mlflow.db ## create .venv and the database (other targets do this too)

packages = ls -d .venv/lib/python*/site-packages/*.dist-info | wc -l

.venv/.synced: $(LOCK)
	@echo 'Installing the packages of $(LOCK) into .venv (once; $(if $(JETSON),0.1,3) GB to download, minutes) ...'
	@$(MAKE) --quiet $(UV)
	@$(PYTHON) -c '' 2>/dev/null || $(UV) venv --quiet --clear --python '>=3.10,<3.14' .venv || { printf >&2 '%s\n' \
	'error: epochmeter needs Python 3.10 to 3.13; none was found or could be downloaded' \
	'  hint: install one (Debian, Ubuntu: apt-get install python3; anywhere: uv python install 3.12), then try again'; exit 1; }
	@$(UV) pip sync --quiet --python $(PYTHON) --require-hashes --compile-bytecode $(LOCK)
	@echo "Installed $$($(packages)) packages."
	@[[ -z '$(JETSON)' ]] || echo 'Training uses the torch of /usr/bin/python3 (another Python: device.python=...).'
	@touch $@

# `dev` is everything that the tests use: all extras, except on a Jetson. `docs` is a dependency group.
extras = $(if $(filter dev-,$*-$(JETSON)),--all-extras,$(if $(filter docs,$*),--group,--extra) $*)

.venv/.with-%: .venv/.synced requirements-dev.lock
	@echo 'Installing the packages of the extra "$*" into .venv (once) ...'
	@$(MAKE) --quiet $(UV)
	@$(UV) pip install --quiet --python $(PYTHON) --require-hashes --no-build --compile-bytecode \
	--constraint requirements-dev.lock --requirement pyproject.toml $(extras) || { printf >&2 '%s\n' \
	'error: the packages for `make $(MAKECMDGOALS)` could not be installed; some have no wheels for old boards' \
	'  hint: copy multirun/ to epochmeter on another machine, then run there: make publish ui'; exit 1; }
	@echo "Installed: .venv has $$($(packages)) packages."
	@touch $@

# Compiled here, because Python compiles at every start if PYTHONDONTWRITEBYTECODE is set.
.venv/.compiled: .venv/.synced $(wildcard src/*.py src/hydra_plugins/*.py $(addprefix src/epochmeter/,*.py */*.py */*/*.py))
	@$(PYTHON) -m compileall -q src || true
	@touch $@

mlflow.db: | .venv/.synced
	@PYTHONPATH=src $(PYTHON) -m epochmeter.tracking.client >/dev/null

.uv/bin/uv:
	@python3 -m pip --version >/dev/null || { printf >&2 '%s\n' \
	'error: the package installer uv is missing and cannot be installed, as there is no python3 with pip' \
	'  hint: install pip (Debian, Ubuntu: apt-get install python3-pip) or uv (https://docs.astral.sh/uv), then try again'; exit 1; }
	@PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --disable-pip-version-check --target .uv uv

dist: | $(UV) ## build the wheel in dist/ (another folder: DIST=)
	$(UV) build --quiet --wheel --out-dir $(or $(DIST),dist)

lock: | $(UV) ## upgrade the locked versions of all dependencies
	$(call compile,--upgrade --all-extras --group docs,requirements-dev.lock)
	$(call compile,--constraint requirements-dev.lock --extra train --extra energy --extra report --extra ui,requirements.lock)
	$(call compile,--constraint requirements-dev.lock --extra tool,requirements-board.lock)

compile = $(UV) pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-annotate \
	--no-emit-index-url --custom-compile-command 'make lock' $(1) pyproject.toml -o $(2)

# The newest working Python of a board's version: the system's, pyenv's, or none.
board_python = $(shell for python in /usr/bin/python$(1) ~/.pyenv/versions/$(1).*/bin/python; do \
	"$$python" -c '' 2>/dev/null && echo "$$python" && break; done)
stack = $(if $(call board_python,$(1)),$(MAKE) --no-print-directory .py$(subst .,,$(1))/.synced,\
	echo 'No Python $(1) on this machine: tests that need it are skipped.')

py36: ## create the environment of JetPack 4 if Python 3.6 is installed
py38: ## create the environment of JetPack 5 if Python 3.8 is installed (4 GB)
py310: ## create the environment of JetPack 6 if Python 3.10 is installed (5 GB)
py36 py38 py310: py3%:
	@$(call stack,3.$*)

# By pip, because uv does not support Python 3.6.
.py36/.synced: tests/system/python36.txt
	$(call board_python,3.6) -m venv --clear .py36
	.py36/bin/python -m pip install --quiet pip==21.3.1
	.py36/bin/python -m pip install --quiet --no-deps --requirement $<
	@touch $@

.py38/.synced .py310/.synced: .py%/.synced: tests/system/python%.txt
	@$(MAKE) --quiet $(UV)
	$(UV) venv --quiet --clear --python $(call board_python,3.$(patsubst 3%,%,$*)) .py$*
	$(UV) pip install --quiet --python .py$*/bin/python --no-deps --requirement $<
	@touch $@

jtop: setup $(call extra,jetson) ## on a Jetson: install the client of jtop's service, which sets power modes without sudo

slurm: setup $(call extra,slurm) ## install submitit, for sweeps on a Slurm cluster

optuna: setup $(call extra,optuna) ## install Optuna, for searches (hydra/sweeper=optuna)

clean: ## remove environments, caches and the built site
	rm -rf .venv .uv .py36 .py38 .py310 .hosts .mypy_cache .pytest_cache .ruff_cache site
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

clean-runs: ## remove all runs: folders, artifacts and database (asks first)
	@read -rp 'Remove all runs in multirun/, mlruns/ and mlflow.db? [y/N] ' answer && [[ $$answer == [yY] ]]
	find multirun mlruns -mindepth 1 ! -name .gitkeep -delete
	rm -f mlflow.db*

.PHONY: help train sweep ui tensorboard watch report doctor validate slurm-demo publish bench faults mutants test test-system test-hosts docs lint setup dist lock py36 py38 py310 jtop slurm optuna clean clean-runs
