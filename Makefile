# Everything from nothing: a Linux machine with Python >= 3.11 (with venv), git and make.
#
#   make demo       the main job, walked through on the embedded mock
#   make test       the tests that need neither root nor Docker
#   make help       the other targets

SHELL := /bin/sh
.DELETE_ON_ERROR:
.SUFFIXES:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
WORKERS ?= 2
# Slow tests wait for a third of their time.
WAITING_WORKERS ?= 3

# Byte code goes below .venv: nothing is written beside the sources, and only what is imported is ever compiled.
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/pycache
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Answers "is this set-up done?" for each lock file; removing .venv answers no to all of them.
STAMP_RUNTIME := $(VENV)/.stamp-runtime
STAMP_TESTING := $(VENV)/.stamp-testing
STAMP_DEV := $(VENV)/.stamp-dev

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

# --- what the two commands of the README do ---------------------------------------------------------------------

.PHONY: demo
demo: $(STAMP_RUNTIME) ## set up, then walk the main job on the embedded mock
	@$(BIN)/provision demo

.PHONY: test
test: $(STAMP_TESTING) ## set up, then run the tests that need neither root nor Docker
	$(PYTEST) -n $(WORKERS) --dist worksteal -m 'not lab and not gpu and not lint and not slow' --ignore=tests/examples

.PHONY: test-slow
test-slow: $(STAMP_TESTING) ## the long matrices that `make test` leaves out: every call with every fault, a cut at every byte
	$(PYTEST) -n $(WAITING_WORKERS) --dist worksteal -m 'slow and not lab and not gpu and not lint' --ignore=tests/examples

# --- for people who change the code -------------------------------------------------------------------------------

.PHONY: setup
setup: $(STAMP_DEV) ## set up with every tool of the development lock file

.PHONY: lint
lint: $(STAMP_DEV) ## ruff, mypy, import contracts, shellcheck, hadolint
	.ci/lint

.PHONY: format
format: $(STAMP_DEV) ## let ruff fix what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

.PHONY: test-busybox
test-busybox: $(STAMP_TESTING) ## the mock tests with busybox as the host's only utilities
	PROVISION_TEST_BUSYBOX=$$(.ci/busybox)/busybox $(PYTEST) -n $(WORKERS) -m busybox -p no:cacheprovider

.PHONY: lab lab-test
lab: $(STAMP_TESTING) ## bring up a host laid out as Container-Optimized OS: real sshd, Docker, mounts; needs root
	@lab/lab up
lab-test: $(STAMP_TESTING) ## the tests on such hosts, each brought up and removed; needs root and what .ci/packages installs
	PROVISION_LAB_REQUIRED=1 PROVISION_CLOUD_INIT=$(CURDIR)/.ci/cloud-init $(PYTEST) tests/lab -p no:cacheprovider

.PHONY: gpu
gpu: $(STAMP_TESTING) ## the acceptance run of MPS on this machine's own NVIDIA GPU; as root, with a Docker Engine; needs no network
	PROVISION_LAB_REQUIRED=1 PROVISION_LAB_GPU=real PROVISION_LAB_BEAM=standin $(PYTEST) tests/gpu tests/mps_rows -m 'gpu and not figures' -p no:cacheprovider -v

.PHONY: gpu-figures
gpu-figures: $(STAMP_TESTING) ## measure on this machine's own NVIDIA GPU what is promised of MPS: as `make gpu`, on a quiet machine, a quarter of an hour
	PROVISION_LAB_REQUIRED=1 PROVISION_LAB_GPU=real PROVISION_LAB_BEAM=standin $(PYTEST) tests/gpu -m figures -p no:cacheprovider -v

.PHONY: test-examples
test-examples: $(STAMP_TESTING) ## the README's commands, the examples and the installed wheel, on the mock
	$(PYTEST) -n $(WAITING_WORKERS) --dist worksteal tests/examples -m 'not lint' -p no:cacheprovider

.PHONY: ci
ci: ## what CI runs, on this machine: as root, installs Debian packages
	.ci/run

.PHONY: clean
clean: ## remove .venv and every cache
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist

# --- set-up -----------------------------------------------------------------------------------------------------

.NOTPARALLEL:

# Missing, or a link to a Python that is gone.
$(BIN)/python:
	@.ci/make-venv $(VENV)

# Written anew with every environment: what the one before held is gone.
$(VENV)/pyvenv.cfg: | $(BIN)/python
	@touch $@

$(STAMP_RUNTIME) $(STAMP_TESTING) $(STAMP_DEV): $(VENV)/.stamp-%: requirements/%.txt pyproject.toml $(VENV)/pyvenv.cfg | $(BIN)/python
	@.ci/install $(VENV) $< $@

# --- lock files -------------------------------------------------------------------------------------------------

# Needs uv (any recent one). Each file is a subset of requirements/dev.txt, so one .venv can hold all three. They serve
# Python 3.11 and later on Linux and macOS, name no index, and are read by pip alone. To move to newer releases:
#     make lock UPGRADE=--upgrade
UV ?= uv
UPGRADE ?=
COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-emit-find-links --no-header --no-annotate pyproject.toml requirements/build.in

.PHONY: lock
lock: ## write requirements/*.txt from pyproject.toml (needs uv)
	$(COMPILE) $(UPGRADE) --extra dev -o requirements/dev.txt
	$(COMPILE) --extra testing -c requirements/dev.txt -o requirements/testing.txt
	$(COMPILE) -c requirements/dev.txt -o requirements/runtime.txt
