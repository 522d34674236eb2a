# demo · test (test-core: the tool; test-papers; test-nightly) · campaign · mutants · matrix · sweep · check · bench · gpu · reproduce · paper-rehearsal · docs · release · clean. Each sets itself up in .venv; quick when nothing changed.
PYTHON ?= python3
TORCH ?= torch==2.13.0
# Another build of torch: make TORCH_INDEX=https://download.pytorch.org/whl/cpu …
TORCH_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# For the tests also Triton, which comes with torch where there is a GPU: 190 MB to download.
READY_TO_TEST := $(VENV)/.ready-to-test
export TOKENIZERS_PARALLELISM := false

.PHONY: demo test test-nightly test-alone test-core test-papers campaign mutants matrix sweep check bench gpu reproduce docs wheel release clean paper-rehearsal
.DEFAULT_GOAL := demo

demo: $(READY)
	$(BIN)/anisoscope measure builtin:minilm --corpus builtin:python-docs --limit 60 --output runs/demo --overwrite

test: $(READY_TO_TEST)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

# All tests, also the long ones whose kinds of mistakes smaller tests see
test-nightly: $(READY_TO_TEST)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal --nightly

# The tool without the papers, in an empty environment: minutes, and a few GB in build/alone.
test-alone:
	PYTHON='$(PYTHON)' TORCH='$(TORCH)' tools/alone.sh

test-core: $(READY_TO_TEST)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal tests

test-papers: $(READY_TO_TEST)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal papers/tests

# Cases made at random, half an hour of them: make campaign SEED=7, of some parts only: make campaign ONLY=kills,hub
campaign: $(READY)
	PYTHONPATH=src:papers/src:tests:tools $(BIN)/python -m campaign $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

# Mistakes put into a copy of the code: make mutants AREA=sums/jackknife COUNT=40
mutants: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[mutants]'
	OMP_NUM_THREADS=1 PYTHONPATH=src:papers/src:tests:tools $(BIN)/python tools/mutants.py $(AREA) $(if $(COUNT),--count $(COUNT)) $(if $(SEED),--seed $(SEED))

# Attention calls of every shape against a plain float64 computation: 1,344 cells, of some alone: make matrix ONLY=causal-right
matrix: $(READY)
	OMP_NUM_THREADS=1 PYTHONPATH=src:tests $(BIN)/python -m attention_matrix $(if $(ONLY),--only $(ONLY)) $(if $(SEED),--seed $(SEED))

# Every model type of transformers, tiny and random, through the default run, against what the model itself returns
sweep: $(READY)
	OMP_NUM_THREADS=1 PYTHONPATH=src:papers/src:tools $(BIN)/python tools/sweep.py

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python benchmarks/limit.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/monitor.py
	$(BIN)/python benchmarks/modalities.py
	$(BIN)/python papers/benchmarks/classifier.py

# DRY=1: every step in miniature, on the CPU of any machine.
gpu: $(READY)
	$(if $(DRY),mkdir -p build && rm -f build/gpu-dry.json)
	$(BIN)/python papers/benchmarks/gpu_studies.py --minutes 40 \
	  $(if $(DRY),--tiny --device cpu --results build/gpu-dry.json,--results papers/results/gpu.json)

reproduce: $(READY)
	$(BIN)/anisoscope reproduce godey2024 --settings quick
	$(BIN)/anisoscope reproduce fosse2023 --settings quick

# The paper's own settings against a hub on this machine, in which two systems are missing: most of an hour.
paper-rehearsal: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python papers/tools/paper_rehearsal.py build/paper-rehearsal

docs: $(READY_TO_TEST)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/python tools/documentation.py
	PYTHONPATH=tools $(BIN)/python papers/tools/paper_pages.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "docs: build/site/index.html"

# Build both distributions, install each into an empty environment, and use it there: minutes, and a few GB for a while.
# make release REPOSITORY=https://github.com/OWNER/anisoscope PYTHONS="python3.11 python3.13" LIGHT=python3.12; SKIP_TESTS=1 leaves out the tests
release: check $(if $(SKIP_TESTS),,test)
	$(MAKE) wheel

wheel:
	REPOSITORY='$(REPOSITORY)' SITE='$(SITE)' TORCH='$(TORCH)' TORCH_INDEX='$(TORCH_INDEX)' $(PYTHON) tools/release.py $(foreach python,$(PYTHONS),--python $(python)) $(foreach python,$(LIGHT),--light $(python))

clean:
	rm -rf $(VENV) runs build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info papers/src/*.egg-info

$(READY): pyproject.toml papers/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "anisoscope needs Python >= 3.11; choose one with make PYTHON=python3.11" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) -c constraints.txt '$(TORCH)'
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' -e papers
	@touch $(READY)

$(READY_TO_TEST): $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[kernels]'
	@touch $(READY_TO_TEST)
