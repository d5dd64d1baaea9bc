# make demo | notebooks | gallery | test | quick | nightly | mutants | docs | tree | lab | lint | light | package: each sets up what it needs from nothing but Python 3.11, make and git.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SCREENSHOTS := out
FRONT := widgets/dist/cluster.js

# Where it is set, each of the hundreds of Python programs that the tests start would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

# A text file that the package opens in the locale's encoding is an error in tests (filterwarnings in pyproject.toml).
PYTEST := PYTHONWARNDEFAULTENCODING=1 $(BIN)/python -m pytest

.PHONY: demo notebooks gallery test quick nightly mutants docs light package lint tree lab venv browser bench lock clean
.DEFAULT_GOAL := demo

venv: $(READY)

# uv installs the lock several times faster than pip; where it cannot (an index that only pip is set up for), pip does.
$(READY): pyproject.toml locks/build.txt locks/requirements.txt locks/tensor2tensor.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "Python 3.11 is needed: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Setting up $(VENV) (a few minutes the first time, about 3.5 GB) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r locks/build.txt
	@tools/install $(BIN)/python --require-hashes -r locks/requirements.txt
	@tools/install $(BIN)/python --require-hashes --no-deps -r locks/tensor2tensor.txt
	@tools/install $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

# The panels' front end; setting up $(VENV) has built it, this does so again when a source has changed.
$(FRONT): tools/bundle.py $(wildcard widgets/*.js widgets/*.css widgets/package*.json) | $(READY)
	@$(BIN)/python tools/bundle.py
	@touch $@

# The quickstart notebook, headless, with progress; leaves a summary on the screen and out/quickstart.html.
demo: $(FRONT)
	@$(BIN)/python notebooks/demo.py

# Four notebooks without a browser. The published study trains what has no row in out/icac19-rows.jsonl: all of it takes
# more than an hour.
notebooks: $(FRONT)
	@for each in quickstart planning lennard-jones icac19; do $(BIN)/python notebooks/demo.py notebooks/$$each.ipynb || exit 1; done

# Run the notebooks in JupyterLab and store them with their outputs, panels as pictures: some minutes for each. Then the
# pictures of the README. The published study is computed from notebooks/icac19-rows.jsonl (`make notebooks` trains it).
gallery: browser $(FRONT)
	@$(BIN)/python tools/gallery.py && $(BIN)/python tools/revocation.py

lab: $(FRONT)
	@$(BIN)/jupyter lab notebooks/quickstart.ipynb

lint: $(READY)
	@$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/pyright && $(BIN)/lint-imports --no-cache && $(BIN)/python tools/modules.py --check && $(BIN)/python tools/style.py --check && $(BIN)/python tools/bundle.py check

# The folders of the code and what each is for: `make -s tree`.
tree: $(READY)
	@$(BIN)/python tools/modules.py --tree

browser: $(READY)
	@$(BIN)/python tests/browser/ensure_chromium.py

# Eight files at a time, on two cores: many tests wait for VMs that boot, notices that expire and steps of a declared
# pace. With eight, both cores are busy from beginning to end. Two of the processes run TensorFlow (tests/conftest.py).
test: browser $(FRONT)
	@$(PYTEST) -n 8 --dist loadfile --no-loadscope-reorder

# Neither TensorFlow nor a browser nor slow tests, and fewer examples: for after every change. Two at a time, on two
# cores: few of these tests wait, and a third process costs a tenth more, because it imports all modules again.
quick: $(FRONT)
	@$(PYTEST) --quick -n 2 --dist worksteal

# What takes long: every fault at every moment, further cases of other tests, planted faults, benchmarks that assert.
# Each part runs alone for at most an hour and stores its result; PART=faults runs one, tools/nightly.py --table shows all.
nightly: browser $(FRONT)
	@$(BIN)/python tools/nightly.py $(PART)

# Plant faults, each in a copy, and see whether the tests of `make test` notice: half an hour on two cores. It resumes.
mutants: browser $(FRONT)
	@$(BIN)/python tools/mutants.py --jobs 3

# The pages, in docs/_build/index.html; a warning is an error.
docs: $(READY)
	@$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build && echo "docs/_build/index.html"

# The client alone, in an empty environment: built, installed and tried with every Python from 3.11 to 3.13 that is here,
# or with PYTHONS="...".
light:
	@tools/light $(PYTHONS)

# A release without publishing: source and wheel, twice and equal, their metadata, `make light` with that wheel, the pages.
# .github/workflows/release.yml runs it for a tag and publishes dist/.
package: $(READY)
	@$(BIN)/python tools/package.py

bench: $(FRONT)
	@for program in benchmarks/bench_*.py; do $(BIN)/python $$program || exit 1; done

# Writes the locks anew from pyproject.toml: every version with its hashes, and no address.
lock: $(READY)
	@PATH="$(CURDIR)/$(BIN):$$PATH" tools/lock

clean:
	rm -rf $(VENV) out build dist widgets/dist widgets/node_modules .pytest_cache .ruff_cache .hypothesis .import_linter_cache
