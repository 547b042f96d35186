# KVMark. `make help` lists what there is.
#
#   make bench SCENARIO=long-context                             set up, fetch the embedded model, measure
#   make bench SCENARIO=long-context BACKEND=vllm,llama-cpp STRATEGY=baseline,kv-fp8 ARGS="scenario.blocks=5"
#   make test                                                    set up and run the tests
#
# What is given on make's command line reaches the environment: PIP_EXTRA_INDEX_URL=<url> (where the CPU build of torch
# lies), PIP_INDEX_URL=<url>, KVMARK_CACHE=<folder>, HF_TOKEN=<token>.

PYTHON ?= python3
VENV ?= .venv

axis = $(if $($(1)),'$(2)=[$($(1))]')
overrides = $(if $(SCENARIO),scenario='$(SCENARIO)') $(call axis,BACKEND,backend) $(call axis,MODEL,model) \
  $(call axis,STRATEGY,strategy) $(call axis,LOAD,load) $(call axis,ACCURACY,accuracy) $(ARGS)

# `exec`: a signal meets the program itself, once. make's own variables mean nothing to an engine that compiles.
run = exec env -u PYTHONOPTIMIZE -u MAKEFLAGS -u MAKELEVEL -u MFLAGS $(VENV)/bin/python

.PHONY: help setup bench plan report compare reproduce jmeter questions test test-e2e lint
.DEFAULT_GOAL := help

help:  ## this list
	@echo "make TARGET [SCENARIO=…] [BACKEND=a,b] [STRATEGY=a,b] [MODEL=a,b] [LOAD=a,b] [ARGS='key=value …'] [PYTHON=…]"
	@sed -n 's/^\([a-z0-9-]*\):.*## /  \1|/p' $(firstword $(MAKEFILE_LIST)) | awk -F'|' '{printf "%-12s %s\n", $$1, $$2}'
	@echo "  scenarios: $(basename $(notdir $(wildcard scenarios/scenario/*.yaml)))"

setup:  ## make the virtual environment (once; the other targets do it too)
	@$(PYTHON) harness/bootstrap.py --venv $(VENV)

bench: setup  ## measure a scenario; again: resume an unfinished run
	@$(run) -m bench run $(overrides)

plan: setup  ## what a scenario would do: launches, memory, time, smallest visible effect
	@$(run) -m bench plan $(overrides)

report: setup  ## rebuild tables and HTML of a run: RUN=results/<scenario>/<run>
	@$(run) -m bench report '$(RUN)' $(ARGS)

compare: setup  ## two runs, or deployments of runs: A=results/<scenario>/<run>[:<deployment>] B=…
	@$(run) -m bench compare a='$(A)' b='$(B)' $(ARGS)

reproduce: setup  ## measure a run again, from its folder, and say which of its numbers came back: RUN=…
	@$(run) -m bench reproduce '$(RUN)' $(ARGS)

jmeter: setup  ## a load as a plan for Apache JMeter: LOAD=<load> MODEL=<model> OUT=<folder>
	@$(run) -m bench jmeter $(overrides) out='$(or $(OUT),jmeter)'

questions: setup  ## questions on long documents out of your own texts: FROM=<folder> OUT=<file>.jsonl (ARGS=context_tokens=… …)
	@$(run) -m bench questions from='$(FROM)' out='$(OUT)' $(if $(MODEL),model='$(MODEL)') $(ARGS)

calibrate: setup  ## find out what the load client can measure on this machine (ARGS=--transport=both …)
	@$(run) -m harness.traffic.calibrate $(ARGS)

perf: setup  ## this project's speed beside other load generators; writes perf.json (ARGS=--only=cpu …)
	@$(run) -m harness.perf $(ARGS)

test: setup-test  ## unit tests
	@$(run) -m pytest -m "not e2e" $(ARGS)

test-e2e: setup-test  ## tests on real engines (minutes)
	@$(run) -m pytest -m e2e $(ARGS)

lint: setup-test  ## style and types
	@$(VENV)/bin/ruff check . && $(VENV)/bin/mypy

.PHONY: setup-test
setup-test:
	@$(PYTHON) harness/bootstrap.py --venv $(VENV) test
