# Everything that can be done with Twophase, on a machine with Python 3.11, git and make. `make` lists it.

PYTHON ?= $(firstword $(shell command -v python3.11 python3) python3.11)
VENV   := .venv
BIN    := $(VENV)/bin
# What mypy reads: those of our folders that hold Python.
TYPED  := $(wildcard service tests bench loadtests requirements grafana deploy)

.DEFAULT_GOAL := help
.PHONY: help run test check chaos clients fleet soak bench loadtest lock dashboards pictures clean install install-ray install-dev

help: ## this list
	@sed -nE 's/^([a-z]+):[^#]*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

run: install ## install what is locked, then serve on 127.0.0.1:8000
	@exec $(BIN)/twophase serve

test: install-dev ## every test but those of chaos, clients and fleet
	$(BIN)/python -m pytest

check: install-dev ## style, types, who imports whom, locks, and whether docs agree with code
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy $(TYPED)
	$(BIN)/lint-imports
	$(BIN)/python requirements/lock.py --check
	$(BIN)/python -m grafana --check
	$(BIN)/python -m deploy --check
	if command -v promtool >/dev/null; then promtool check rules grafana/rules/*.yml; fi
	$(BIN)/python -m pytest tests/test_docs.py

bench: install-dev ## Twophase, bare vLLM and vllm serve side by side; RUST=path/to/vllm-rs adds its Rust front end
	$(BIN)/python -m bench
	$(BIN)/python -m bench.overload

# Each of these, where it is given, is an option of the load tests; the rest go into ARGS.
LOADTEST = $(URL) $(foreach name,SCENARIO WORKLOAD USERS RATES RATE SECONDS SLO PROCESSES OUT,$(if $($(name)),\
	--$(shell echo $(name) | tr A-Z a-z) $($(name)))) $(if $(WEB),--web) $(ARGS)

loadtest: install-dev ## load on URL=http://… or on a server it starts, and a report; SCENARIO=, WORKLOAD=, WEB=1, ARGS=--help
	@$(BIN)/python -m loadtests $(LOADTEST)

chaos: install-dev ## kill, stop and drain real services under load
	$(BIN)/python -m pytest -m chaos

clients: install-dev ## the client packages people use, fetched and run against the service
	$(BIN)/python -m pytest -m clients

fleet: install-dev install-ray ## two engines behind Ray Serve and behind vllm-router, which are fetched first
	$(BIN)/python -m pytest -m fleet

soak: install-dev ## ten minutes of mixed good and bad load, then look whether anything has grown or is left
	$(BIN)/python -m tests.chaos.soak

dashboards: install-dev ## make grafana/dashboards/*.json from grafana/*.py, and the Kubernetes objects with them
	$(BIN)/python -m grafana
	$(BIN)/python -m deploy

pictures: install-dev ## dashboards and playground as they look on a real service, into grafana/pictures
	$(BIN)/python -m tests.grafana.picture
	$(BIN)/python -m tests.page.picture

lock: install-dev ## make requirements/*.lock from pyproject.toml; UPGRADE=1 takes the newest of everything
	$(BIN)/python requirements/lock.py $(if $(UPGRADE),--upgrade)
	$(BIN)/python -m tests.clients.lock $(if $(UPGRADE),--upgrade)

clean: ## remove the environment and what the tools left behind
	rm -rf $(VENV) $(VENV).lock $(VENV)-ray $(VENV)-ray.lock .import_linter_cache .mypy_cache .pytest_cache .ruff_cache .hypothesis dist
	find . -name __pycache__ -prune -exec rm -rf {} +

install:
	@$(PYTHON) requirements/install.py --venv $(VENV)

install-ray:
	@$(PYTHON) requirements/install.py --venv $(VENV)-ray --ray

install-dev:
	@$(PYTHON) requirements/install.py --venv $(VENV) --dev
