# make book | test | lab | clean | mutants | bench | records | timings        SCALE=full for full quality
SCALE ?= quick
PYTHON ?= python3
CHAPTERS := $(wildcard notebooks/*.ipynb)
# This checkout's library, wherever a script or a kernel runs.
export PYTHONPATH := $(CURDIR)
EXECUTED := $(CHAPTERS:%=_build/$(SCALE)/src/%)

# Conda users who activated the environment of environment.yml need no second one.
ifeq ($(CONDA_DEFAULT_ENV),fedlib-course)
PY := python
else
PY := .venv/bin/python
READY := .venv/ready
endif

.PHONY: book test mutants records bench timings lab clean FORCE

book: $(EXECUTED)
	@$(PY) tools/build_html.py $(SCALE)

# Asked every time, cheap to answer: the script re-executes a notebook only if something it depends on changed.
_build/$(SCALE)/src/notebooks/%.ipynb: $(READY) FORCE
	@$(PY) tools/execute.py notebooks/$*.ipynb $(SCALE)

test: $(READY)
	@$(MAKE) --no-print-directory book SCALE=quick
	@$(PY) -m pytest

mutants: $(READY)
	@$(PY) tools/mutants.py

records: $(READY)
	@$(PY) tools/records.py $(RUNS)

bench: $(READY)
	@$(PY) bench/compare.py $(BENCH)

timings: $(READY)
	@$(PY) tools/timings.py $(SCALE)

lab: $(READY)
	@$(PY) -m jupyterlab notebooks

clean:
	rm -rf _build .pytest_cache .hypothesis

.venv/ready: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python >= 3.11 is needed, this is " + sys.version.split()[0] + ": try make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --requirement requirements.txt
	$(PY) -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@
