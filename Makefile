# Every target makes its own environment in .venv first; nothing else needs to be installed but Python >= 3.11.
#   make reproduce TIER=lab STACK=cuda ARGS="--dry-run"
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

STACK ?= cpu
TIER ?=
CORES ?= all
ARGS ?=
PROFILE ?= workflow/profiles/default

VENV := .venv
BIN := $(VENV)/bin
EXTRAS_cpu := dev
EXTRAS_cuda := dev,gpu
EXTRAS_vllm := dev,vllm
STAMP := $(VENV)/installed-$(STACK)
KVPRESS := $(VENV)/installed-kvpress
SNAKEMAKE = $(BIN)/snakemake $(TARGETS) --workflow-profile $(PROFILE) $(if $(TIER),--config tier=$(TIER)) --cores $(CORES) $(ARGS)

.PHONY: help reproduce figures test lint

help: ## Show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(STAMP): envs/$(STACK).txt pyproject.toml
	test -x $(BIN)/python || python3 -m venv $(VENV)
	test -x $(BIN)/uv || $(BIN)/pip install -q uv
	$(BIN)/uv pip install -q --compile-bytecode --python $(BIN)/python $${PIP_FIND_LINKS:+--find-links "$$PIP_FIND_LINKS"} -c envs/$(STACK).txt -e '.[$(EXTRAS_$(STACK))]'
	rm -f $(VENV)/installed-*
	touch $@

reproduce: $(STAMP) ## Labels, estimators, evaluation, tables, figures and claims of the tier (quick unless TIER= is given)
	@$(BIN)/python -m kvrepro.locks
	@$(BIN)/python -m kvrepro.wheels $(TIER)
	$(SNAKEMAKE)

figures: TARGETS := figures tables claims reference latency_reference
figures: $(STAMP) ## Tables, figures and claims of the tier, and those of the committed reference results
	@$(BIN)/python -m kvrepro.locks
	$(SNAKEMAKE)

$(KVPRESS): $(STAMP) envs/kvpress.txt
	$(BIN)/uv pip install -q --compile-bytecode --python $(BIN)/python $${PIP_FIND_LINKS:+--find-links "$$PIP_FIND_LINKS"} --no-deps -r envs/kvpress.txt
	touch $@

test: $(KVPRESS) ## Run the tests
	$(BIN)/pytest

lint: $(STAMP) ## Check workflow and code style
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint
