# `make demo`, `make test` and `make slow` need nothing but Python 3.11 or newer: they make .venv and install what they
# use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PINS := $(VENV)/constraints.txt
# The second is for what packages are built with, where pip is 25.3 or newer.
PIP := PIP_CONSTRAINT=$(PINS) PIP_BUILD_CONSTRAINT=$(PINS) $(BIN)/python -m pip --disable-pip-version-check
OLDEST := $(VENV)-oldest

# Tests start hundreds of processes; with this variable set each would compile traceq again.
unexport PYTHONDONTWRITEBYTECODE

# Plugins that lie in the Python below .venv, as with a torch that is installed there, stay out of the suite.
PLUGINS := xdist.plugin xdist.looponfail pytest_rerunfailures _hypothesis_pytestplugin
PYTEST_OPTIONS := -m pytest $(PLUGINS:%=-p %)
export PYTEST_DISABLE_PLUGIN_AUTOLOAD := 1

.PHONY: demo test guard nightly slow answers oldest lint fuzz recipes faults strategies bench causes jobs recordings whatif docs wheels constraints clean
.DEFAULT_GOAL := demo
.DELETE_ON_ERROR:

demo: $(VENV)/.demo ## record a check, and one of known cost, on two CPU ranks and say what each costs
	@run=traceq-runs/demo-$$(date +%Y%m%d-%H%M%S) && \
	$(BIN)/traceq record --recipe fixtures/demo.py --ranks 2 --device cpu --until decided --max-minutes 0.75 --out $$run > /dev/null && \
	$(BIN)/traceq diff $$run --html $$run/diff.html && \
	$(BIN)/traceq diff $$run

test: lint ## lint, types, and every test but those of the targets below
	$(BIN)/python $(PYTEST_OPTIONS) -n auto

guard: $(VENV)/.test ## does a recording leave a job of any kind as it is? Part of the slow tests, which a change has to pass
	$(BIN)/python $(PYTEST_OPTIONS) -n auto -m "slow or not slow" \
	  tests/recorder/test_recording_changes_nothing.py tests/recorder/test_compiled_jobs.py tests/recorder/test_job_ends.py \
	  tests/recorder/jobs/test_faults.py tests/recorder/timing/test_gc_pauses.py

# All parts take a night. PARTS="slow faults" runs some; the rows of the others stay as they are.
nightly: ## the long suites; what came of each goes into tests/nightly.md
	$(PYTHON) tests/nightly.py $(PARTS)

slow: $(VENV)/.test ## the slow tests, and the property tests with five times as many examples
	$(BIN)/python $(PYTEST_OPTIONS) -n auto --hypothesis-profile all \
	  -m "(slow or hypothesis) and not recipes and not many and not faults"

answers: $(VENV)/.test ## what is answered otherwise than recorded, on every trace and pair at hand? WRITE=--write renews the record
	$(BIN)/python tests/answers/answers.py $(WRITE)

# The oldest torch is a build for CUDA, of 3 GB, unless TORCH_INDEX names an index with others. What these packages
# deprecate in each other is ignored.
oldest: $(OLDEST)/bin/python ## every test but those of the targets below, with the oldest packages that pyproject.toml allows
	$(OLDEST)/bin/python packaging/oldest.py record cluster hta parquet query zstd > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install -q -c $(OLDEST)/constraints.txt \
	  $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -e '.[record,dev,hta]'
	$(OLDEST)/bin/python -m pip install -q -c $(OLDEST)/constraints.txt --no-deps apache-otava
	$(OLDEST)/bin/python $(PYTEST_OPTIONS) -n auto -m 'not pinned and not slow and not recipes and not many and not faults' \
	  $(patsubst %,-W ignore::%,DeprecationWarning FutureWarning ResourceWarning pytest.PytestUnraisableExceptionWarning)

$(OLDEST)/bin/python:
	$(PYTHON) -m venv $(OLDEST)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# MINUTES of damaged traces through both readers: first the scanner as it is installed, then, where there is a gcc, one
# built with sanitizers. What is read differently is added to tests/corpus. Half of the time whole commands, all there are
# and the tools of agents, run on input whose structure was changed, in processes of limited memory and CPU time.
MINUTES ?= 10
SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -O1 -g
fuzz: $(VENV)/.test
	PYTHONPATH=tests/support $(BIN)/python tests/support/fuzz_commands.py --minutes $$(( ($(MINUTES) + 1) / 2 ))
	PYTHONPATH=tests/support $(BIN)/python tests/support/fuzz.py --minutes $$(( ($(MINUTES) + 3) / 4 ))
	CXXFLAGS="$(SANITIZE)" LDFLAGS="$(SANITIZE)" $(BIN)/python setup.py -q build_ext --force --build-lib build/asan --build-temp build/asan
	PYTHONPATH=tests/support LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
	  ASAN_OPTIONS=detect_leaks=0 $(BIN)/python tests/support/fuzz.py --minutes $$(( ($(MINUTES) + 3) / 4 )) \
	  --library build/asan/traceq/kineto/_scan.abi3.so

recipes: $(VENV)/.test ## does each recipe show what it says it shows?
	$(BIN)/python $(PYTEST_OPTIONS) -m "recipes or not recipes" tests/recipes/test_recipes.py

faults: $(VENV)/.test ## does a recording end well whatever happens to it, and whoever started it?
	$(BIN)/python $(PYTEST_OPTIONS) -m "faults or not faults" tests/recorder/failures/test_loops_end.py tests/recorder/failures/test_first_cause.py tests/recorder/failures/test_ranks_that_hang.py tests/recorder/failures/test_random_ends.py tests/recorder/failures/test_ended_from_outside.py tests/recorder/failures/test_every_recipe_fails.py tests/recorder/failures/test_random_kills.py tests/recorder/failures/test_jobs_fail.py tests/recorder/test_launchers.py

strategies: $(VENV)/.test ## does this torch issue what the recorded strategies hold, and dump what is read?
	TRACEQ_RECORD=1 $(BIN)/python $(PYTEST_OPTIONS) -m "slow or not slow" tests/analysis/test_strategy.py tests/runs/test_flight_recorder.py

bench: $(VENV)/.test ## the figures that the docs quote
	PYTHONPATH=tests/support $(BIN)/python benchmarks/bars.py --ranks 10240
	$(BIN)/python benchmarks/stats.py
	$(BIN)/python benchmarks/history.py
	$(BIN)/python benchmarks/read.py
	$(BIN)/python benchmarks/show.py
	$(BIN)/python benchmarks/roofline.py $(TRACES)
	PYTHONPATH=tests/support $(BIN)/python benchmarks/scale.py
	PYTHONPATH=tests/support $(BIN)/python benchmarks/whatif_scale.py
	PYTHONPATH=tests/support $(BIN)/python benchmarks/growth.py

# TRACES and TOOLS are not part of this repository: recorded traces, and the simulator that changes them.
TRACES ?= ../shared/traces
TOOLS ?= ../shared/tools/known_changes
causes: $(VENV)/.test ## are the causes of a diff true? Half an hour the first time; HELD_OUT=--held-out for the sources set aside
	$(BIN)/python benchmarks/causes.py --traces $(TRACES) --tools $(TOOLS) --work build/causes $(HELD_OUT)
	$(BIN)/python benchmarks/predictions.py --traces $(TRACES) --work build/causes

# SCRIPTS is a folder for public training scripts: they are cloned into it where that is possible, else skipped.
# Resumable: JOBS_MINUTES=10 for a slice.
SCRIPTS ?= build/jobs
JOBS_MINUTES ?= inf
jobs: $(VENV)/.test ## does an A/B on public scripts, unedited, find a cost that is known? What does a trainer's owner learn?
	$(BIN)/python benchmarks/job_cost.py
	$(BIN)/python benchmarks/jobs.py --scripts $(SCRIPTS) --minutes $(JOBS_MINUTES)
	$(BIN)/python benchmarks/trainer.py --minutes $(JOBS_MINUTES)

# Real recordings of two CPU ranks, resumable: ONLY="symmetric slow", RECORD_MINUTES=10 for a slice.
RECORD_MINUTES ?= inf
recordings: $(VENV)/.test ## do symmetric ranks have stragglers, slow ones none, equal arms a verdict? An hour or more
	$(BIN)/python benchmarks/recordings.py $(ONLY) --minutes $(RECORD_MINUTES)

# Real recordings of two CPU ranks, resumable, in build/whatif: on a busy machine steps differ by more than changes do.
whatif: $(VENV)/.test ## is what a change is predicted to do what it does? Twenty minutes the first time
	$(BIN)/python benchmarks/whatif.py --work build/whatif --traces $(TRACES) --page docs/contributing/predictions.md

docs: $(VENV)/.test ## the pages as a site, in build/site
	$(BIN)/python -m mkdocs build --strict --site-dir build/site

wheels: $(VENV)/.wheels ## the source distribution and all wheels but that of Windows, in dist
	$(BIN)/python packaging/wheels.py

clean:
	rm -rf $(VENV) $(OLDEST) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# An importable torch, of whatever build, is used as it is; else the pinned one is installed. For a certain build install
# torch first, or say TORCH_INDEX=https://download.pytorch.org/whl/cpu (or .../cu128).
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "traceq needs Python 3.11 or newer, and $(PYTHON) is older: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@if $(PYTHON) -c 'import torch' 2> /dev/null; then $(PYTHON) -m venv --system-site-packages $(VENV); \
	  else $(PYTHON) -m venv $(VENV); fi

$(VENV)/.torch: $(PINS)
	@$(BIN)/python -c 'import torch' 2> /dev/null || \
	  $(PIP) install -q $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch
	@touch $@

# The torch of another index comes with other libraries of CUDA.
$(PINS): $(BIN)/python constraints.txt packaging/constraints.py
	@$(BIN)/python packaging/constraints.py $(if $(TORCH_INDEX),| grep -Ev '^(cuda|nvidia|triton)') > $@

# KEEP="msgspec==0.22.0 torch==2.15.0" chooses versions; of torch the present one is kept.
constraints: $(BIN)/python ## the newest versions of what is installed here, in constraints.txt; run `make test` on them
	$(BIN)/python packaging/constraints.py --renew $(KEEP)

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	$(PIP) install -q -e '.[record]'
	@touch $@

# What is compiled is built anew where its sources have changed. Of apache-otava the analysis alone is used, which needs
# numpy and scipy of any version: as a dependency it would bring an older numpy and clients of BigQuery, Slack and others.
$(VENV)/.test: $(VENV)/.torch pyproject.toml setup.py $(wildcard traceq/*.?pp traceq/causes/*.cpp traceq/kineto/*.cpp traceq/kineto/scanner/*.hpp)
	$(PIP) install -q -e '.[record,dev,hta]'
	$(PIP) install -q --no-deps apache-otava
	@touch $@ $(VENV)/.demo

$(VENV)/.wheels: $(PINS) pyproject.toml
	$(PIP) install -q $$($(BIN)/python packaging/wheels.py --requirements)
	@touch $@
