# `make help` lists what can be done. Each target does the set-up it needs, once.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON := .venv/bin/python
UV     := $(or $(shell command -v uv),.uv/bin/uv)
SWEEP  := batch=8,16,32
BENCHES := overhead ranks start residual memory loader stalls what_if staging energy phases report sweep

# A process a core, up to four: each makes a project of its own to copy from, which takes it seconds.
# ARGS="-n0 tests/config/test_job.py" runs a file in one process, as a debugger needs it.
SHARED_OUT := -n logical --maxprocesses 4 --dist loadscope
# What pytest exits with where ARGS choose no test of a kind.
NONE_CHOSEN := 5

# On a Jetson the steward has a light environment of its own, and NVIDIA's torch stays where it is.
JETSON := $(wildcard /etc/nv_tegra_release)
LOCK   := $(if $(JETSON),requirements-board.lock,requirements.lock)
extra   = $(if $(JETSON),.venv/.with-$(1))

help: ## say what can be done
	@grep -hE '^[a-z0-9-]+:.*##' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:.*## /\t/' | expand -t 14
	@echo; echo 'Arguments go in ARGS:  make train ARGS="model=lenet batch=32"'

##### Run

train: setup ## train as configured and show what it cost
	$(PYTHON) src/train.py $(ARGS)

sweep: setup ## train once for each combination (ARGS="batch=8,16,32 workers=0,4")
	$(PYTHON) src/train.py -m $(or $(ARGS),$(SWEEP))

ui: setup $(call extra,ui) ## open the runs in MLflow: two processes rather than fifteen
	MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false .venv/bin/mlflow ui --workers 1 $(ARGS)

tensorboard: setup $(call extra,tensorboard) ## open the runs of tracking.tensorboard=true in TensorBoard
	.venv/bin/tensorboard --logdir multirun --host 127.0.0.1 $(ARGS)

report: setup ## say what the last sweep tells (ARGS="sweep=..."), and make its page
	$(PYTHON) src/report.py $(ARGS)

doctor: setup ## say what this machine can measure and set, and why not
	$(PYTHON) src/doctor.py $(ARGS)

slurm-demo: setup $(call extra,slurm) ## show a fleet on this machine: a real Slurm of two nodes, and a sweep on them
	PYTHONPATH=src:tests $(PYTHON) benchmarks/fleet.py $(ARGS)

publish: setup ## write the runs' folders to MLflow, adding what it lacks
	$(PYTHON) src/publish.py $(ARGS)

bench: setup $(call extra,dev) ## print the benchmarks' tables (ARGS=--short: only see that they work)
	@failed=(); for bench in $(BENCHES); do PYTHONPATH=src:tests $(PYTHON) benchmarks/$$bench.py $(ARGS) || \
	failed+=($$bench); done; [[ -z $${failed[*]} ]] || { echo >&2 "error: failed: $${failed[*]}"; exit 1; }

faults: setup $(call extra,dev) ## hurt runs in every way, and print what is left of it (hours; ARGS="--each 1")
	PYTHONPATH=src:tests $(PYTHON) benchmarks/faults.py $(ARGS)

##### Check

test: setup $(call extra,dev) ## run the tests
	$(PYTHON) -m pytest $(SHARED_OUT) $(ARGS)

test-system: setup py36 py38 py310 $(call extra,dev) ## run the tests that need a server, a browser, another Python or root
	$(PYTHON) -m pytest -m 'system and not alone' $(SHARED_OUT) $(ARGS) || [[ $$? == $(NONE_CHOSEN) ]]
	$(PYTHON) -m pytest -m 'system and alone' $(ARGS) || [[ $$? == $(NONE_CHOSEN) ]]

lint: setup $(call extra,dev) ## check style, format and types
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy

##### Set up

setup: .venv/.synced .venv/.compiled mlflow.db ## make the environment and the database (the other targets do it too)

.venv/.synced: $(LOCK)
	@$(MAKE) --quiet $(UV)
	@$(PYTHON) -c '' 2>/dev/null || $(UV) venv --quiet --clear --python '>=3.10,<3.14' .venv || { echo >&2 \
	'epochmeter needs Python 3.10 to 3.13: none was found and none could be fetched.' \
	'Install one (Debian, Ubuntu: apt-get install python3; anywhere: uv python install 3.12) and try again.'; exit 1; }
	$(UV) pip sync --python $(PYTHON) --require-hashes --compile-bytecode $(LOCK)
	@[[ -z '$(JETSON)' ]] || echo \
	'This is a Jetson: torch comes from NVIDIA, for the Python that trains (/usr/bin/python3; another: device.python=...).'
	@touch $@

# What a Jetson gets later, when it is first asked for, at the versions of the whole lock: all but torch.
.venv/.with-%: .venv/.synced requirements.lock
	$(UV) pip install --python $(PYTHON) --require-hashes --no-build --compile-bytecode \
	--constraint requirements.lock --requirement pyproject.toml --extra $* || { echo >&2 \
	'This board is too old for what "make $(MAKECMDGOALS)" needs. Copy multirun/ to a epochmeter on another machine,' \
	'and there: make publish ui'; exit 1; }
	@touch $@

# Compiled here, since PYTHONDONTWRITEBYTECODE would have every start compile anew.
.venv/.compiled: .venv/.synced $(wildcard src/*.py src/hydra_plugins/*.py $(addprefix src/epochmeter/,*.py */*.py */*/*.py))
	@$(PYTHON) -m compileall -q src || true
	@touch $@

mlflow.db: | .venv/.synced
	PYTHONPATH=src $(PYTHON) -m epochmeter.tracking.client

.uv/bin/uv:
	@python3 -m pip --version >/dev/null || { echo >&2 \
	'epochmeter installs with uv, which is not here and cannot be had: there is no python3 with pip.' \
	'Install pip (Debian, Ubuntu: apt-get install python3-pip) or uv (https://docs.astral.sh/uv), and try again.'; exit 1; }
	PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --disable-pip-version-check --target .uv uv

lock: | $(UV) ## resolve the dependencies anew
	$(call compile,--all-extras,requirements.lock)
	$(call compile,,requirements-board.lock)

compile = $(UV) pip compile --quiet --upgrade --universal --python-version 3.10 --generate-hashes --no-annotate \
	--no-emit-index-url --custom-compile-command 'make lock' $(1) pyproject.toml -o $(2)

# The newest Python of a board's version that runs: a board's own, pyenv's, or none.
board_python = $(shell for python in /usr/bin/python$(1) ~/.pyenv/versions/$(1).*/bin/python; do \
	"$$python" -c '' 2>/dev/null && echo "$$python" && break; done)
stack = $(if $(call board_python,$(1)),$(MAKE) --no-print-directory .py$(subst .,,$(1))/.synced,\
	echo 'No Python $(1) here: what needs one is skipped.')

py36: ## make the environment of JetPack 4, where there is a Python 3.6
	@$(call stack,3.6)

py38: ## make the environment of JetPack 5, where there is a Python 3.8 (4 GB)
	@$(call stack,3.8)

py310: ## make the environment of JetPack 6, where there is a Python 3.10 (5 GB)
	@$(call stack,3.10)

# By pip, as uv knows no Python that old.
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

jtop: setup $(call extra,jetson) ## on a Jetson: add the client of jtop's service, which sets power modes without sudo

slurm: setup $(call extra,slurm) ## on a Jetson that is a node of a cluster: add what its jobs start by

optuna: setup $(call extra,optuna) ## on a Jetson: add what a search is made by (hydra/sweeper=optuna)

clean: ## remove what can be made again: environments, caches
	rm -rf .venv .uv .py36 .py38 .py310 .mypy_cache .pytest_cache .ruff_cache
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

clean-runs: ## remove every run: folders, artifacts and the database (asks first)
	@read -rp 'Remove all runs in multirun/, mlruns/ and mlflow.db? [y/N] ' answer && [[ $$answer == [yY] ]]
	find multirun mlruns -mindepth 1 ! -name .gitkeep -delete
	rm -f mlflow.db*

.PHONY: help train sweep ui tensorboard report doctor slurm-demo publish bench faults test test-system lint setup lock py36 py38 py310 jtop slurm optuna clean clean-runs
