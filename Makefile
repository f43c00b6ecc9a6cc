# Every target makes its own environment in .venv first; nothing else needs to be installed but Python >= 3.11.
#   make reproduce TIER=lab ENV=cuda ARGS="--dry-run"
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

ENV ?= cpu
TIER ?=
CORES ?= all
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
EXTRAS := $(if $(filter cuda,$(ENV)),dev$(,)gpu,$(if $(filter vllm,$(ENV)),dev$(,)vllm,dev))
STAMP := $(VENV)/installed-$(ENV)
SNAKEMAKE := $(BIN)/snakemake --cores $(CORES) $(if $(TIER),--config tier=$(TIER)) $(ARGS)
, := ,

.PHONY: help reproduce figures test lint clean

help: ## Show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(STAMP): envs/$(ENV).txt pyproject.toml
	test -x $(BIN)/python || python3 -m venv $(VENV)
	test -x $(BIN)/uv || $(BIN)/pip install -q uv
	$(BIN)/uv pip install -q --python $(BIN)/python $${PIP_FIND_LINKS:+--find-links "$$PIP_FIND_LINKS"} -c envs/$(ENV).txt -e '.[$(EXTRAS)]'
	rm -f $(VENV)/installed-*
	touch $@

reproduce: $(STAMP) ## Labels, estimators, evaluation, tables, figures and claims of the tier (quick unless TIER= is given)
	@$(BIN)/python -m kvrepro.locks
	$(SNAKEMAKE)

figures: $(STAMP) ## Redraw tables, figures and claims from the results there are
	@$(BIN)/python -m kvrepro.locks
	$(SNAKEMAKE) figures tables claims

test: $(STAMP) ## Run the tests
	$(BIN)/pytest

lint: $(STAMP) ## Check workflow and code style
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint
