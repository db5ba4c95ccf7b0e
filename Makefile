# The two commands of the README are `make demo` and `make test`; the rest is for working on adjudge.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Environments that cannot live together with the main one are kept outside the checkout.
ENVS   ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/adjudge/envs

# Suites that run in an environment of their own, with few plug-ins.
ALONE  := -q -p no:cacheprovider -c /dev/null --rootdir . --import-mode=importlib

# What `adjudge serve` needs, in environments that have no hashes for it.
SERVER := httptools==0.9.0 prometheus-client==0.26.0 starlette==1.10.0 uvicorn==0.54.0
# What `adjudge eval` and `study` need there.
STATS  := scipy==1.17.1

.PHONY: conformance help release-check sdist demo demo-agent demo-judge demo-live demo-rl demo-study test check format docs screenshots bench bench-quick test-openjudge test-embedded test-environments test-formats test-notebook test-plugins test-ray test-ray-cluster test-service test-serving test-sinks test-trl test-verifiers test-verl test-verl091 test-wheel wheel lock clean

help:  ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The core and what it needs to run, from the lock.
$(VENV)/.core: requirements/core.txt pyproject.toml | $(BIN)/python
	$(PIP) install --require-hashes -r requirements/core.txt
	$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

# Everything that tests, checks and docs need: the lab, too.
$(VENV)/.dev: requirements/dev.txt lab/pyproject.toml $(VENV)/.core
	$(PIP) install --require-hashes -r requirements/dev.txt
	$(PIP) install --no-deps --no-build-isolation -e lab
	@touch $@

demo: $(VENV)/.core  ## set up and run the main job on rollouts that ship with the package
	$(BIN)/adjudge demo

# The tests start hundreds of processes: all of them read the bytecode that the first one wrote.
# In the order of the files, a long one does not come last.
test: $(VENV)/.dev  ## set up and run the tests
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder

test-service: $(VENV)/.dev  ## slow ones: the judge service under faults and hostile requests, the live page, whole commands, many examples
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m slow --hypothesis-profile=thorough tests/unit tests/property tests/integration tests/e2e tests/contract/test_recorded_verdicts.py tests/contract/test_swap_llmbar.py lab/tests
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --hypothesis-profile=thorough tests/property lab/tests/property

check: $(VENV)/.dev  ## lint, types, layers, dependencies, words
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry src
	cd lab && ../$(BIN)/deptry src
	$(BIN)/codespell docs src lab/src examples .ci Makefile *.md
	$(BIN)/python .ci/prose.py

format: $(VENV)/.dev  ## format the code
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

docs: $(VENV)/.dev  ## build the documentation into site/
	$(BIN)/mkdocs build --strict --quiet

screenshots: $(VENV)/.dev  ## draw the pictures of the docs anew (needs Chromium)
	ADJUDGE_SCREENSHOTS=1 $(BIN)/python -m pytest -q -m slow tests/e2e/test_screenshots.py

$(ENVS)/openjudge/.done:
	$(PYTHON) -m venv $(ENVS)/openjudge
	$(ENVS)/openjudge/bin/pip --disable-pip-version-check --quiet install py-openjudge==0.2.4 pytest==9.2.0 \
	    msgspec uvloop
	@touch $@

$(ENVS)/embedded/.done: requirements/core.txt Makefile
	$(PYTHON) -m venv $(ENVS)/embedded
	$(ENVS)/embedded/bin/pip --disable-pip-version-check --quiet install -r requirements/core.txt
	$(ENVS)/embedded/bin/pip --disable-pip-version-check --quiet install xllamacpp==2026.10.11549 \
	    gguf==0.19.0 pytest==9.2.0 $(SERVER) $(STATS)
	PYTHONPATH=src $(ENVS)/embedded/bin/python -m adjudge models fetch smollm2
	@touch $@

$(ENVS)/notebook/.done: requirements/core.txt Makefile
	$(PYTHON) -m venv $(ENVS)/notebook
	$(ENVS)/notebook/bin/pip --disable-pip-version-check --quiet install -r requirements/core.txt
	$(ENVS)/notebook/bin/pip --disable-pip-version-check --quiet install ipykernel==7.4.0 pytest==9.2.0
	@touch $@

$(ENVS)/ray/.done: requirements/core.txt Makefile
	$(PYTHON) -m venv $(ENVS)/ray
	$(ENVS)/ray/bin/pip --disable-pip-version-check --quiet install -r requirements/core.txt
	$(ENVS)/ray/bin/pip --disable-pip-version-check --quiet install "ray[serve,data]==2.60.0" \
	    pyarrow==26.0.1 pytest==9.2.0 $(SERVER)
	@touch $@

# What trains and serves on a CPU, and two trainers' own client modules, whose packages would bring
# stacks of their own. On Linux the index's torch is a CUDA build of gigabytes; for the one that
# suffices here, set PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
$(ENVS)/torch/.done: requirements/core.txt Makefile
	$(PYTHON) -m venv $(ENVS)/torch
	$(ENVS)/torch/bin/pip --disable-pip-version-check --quiet install -r requirements/core.txt
	$(ENVS)/torch/bin/pip --disable-pip-version-check --quiet install torch==2.13.0 trl==1.16.0 \
	    "transformers[serving]==5.23.0" crafter==1.8.3 peft==0.21.2 requests pytest==9.2.0 $(SERVER) $(STATS) \
	    gguf==0.19.0 xllamacpp==2026.10.11549
	$(ENVS)/torch/bin/pip --disable-pip-version-check --quiet install --no-deps openrlhf==0.11.2 \
	    llamafactory==0.9.5
	@touch $@

# Versions of TRL that count a missing reward as 0, each in a folder that goes before the newest.
OLDER_TRL := 0.29.0 1.0.0 1.5.1
$(ENVS)/torch/older-trl/.done: $(ENVS)/torch/.done
	for version in $(OLDER_TRL); do $(ENVS)/torch/bin/pip --disable-pip-version-check --quiet install \
	    --no-deps --upgrade --target $(@D)/$$version trl==$$version || exit 1; done
	@touch $@

$(ENVS)/sinks/.done: requirements/core.txt Makefile
	$(PYTHON) -m venv $(ENVS)/sinks
	$(ENVS)/sinks/bin/pip --disable-pip-version-check --quiet install -r requirements/core.txt
	$(ENVS)/sinks/bin/pip --disable-pip-version-check --quiet install trackio==0.43.0 \
	    tensorboard==2.21.0 wandb==0.31.0 pytest==9.2.0
	@touch $@

$(ENVS)/verifiers/.done: requirements/core.txt Makefile
	$(PYTHON) -m venv $(ENVS)/verifiers
	$(ENVS)/verifiers/bin/pip --disable-pip-version-check --quiet install -r requirements/core.txt
	$(ENVS)/verifiers/bin/pip --disable-pip-version-check --quiet install verifiers==0.4.0 pytest==9.2.0
	@touch $@

# verl 0.6.1 needs older libraries than it asks for: with newer ones it installs and fails on import.
$(ENVS)/verl061/.done: requirements/core.txt Makefile
	$(PYTHON) -m venv $(ENVS)/verl061
	$(ENVS)/verl061/bin/pip --disable-pip-version-check --quiet install -r requirements/core.txt
	$(ENVS)/verl061/bin/pip --disable-pip-version-check --quiet install torch==2.13.0 verl==0.6.1 \
	    "transformers>=4.57,<5" "numpy<2" "pyarrow>=19,<22" "pandas<3" "datasets<4.5" "packaging<26" \
	    openai cachetools uvicorn fastapi pytest==9.2.0 $(STATS)
	@touch $@

$(ENVS)/verl091/.done: requirements/core.txt Makefile
	$(PYTHON) -m venv $(ENVS)/verl091
	$(ENVS)/verl091/bin/pip --disable-pip-version-check --quiet install -r requirements/core.txt
	$(ENVS)/verl091/bin/pip --disable-pip-version-check --quiet install torch==2.13.0 verl==0.9.1 \
	    "TransferQueue==0.1.11" openai fastapi pytest==9.2.0 $(SERVER) $(STATS)
	@touch $@

$(ENVS)/twine/.done: Makefile
	$(PYTHON) -m venv $(ENVS)/twine
	$(ENVS)/twine/bin/pip --disable-pip-version-check --quiet install twine==7.0.0
	@touch $@

bench: $(VENV)/.dev $(ENVS)/openjudge/.done  ## speed, side by side with py-openjudge
	$(BIN)/python benchmarks/run.py --peer-python $(ENVS)/openjudge/bin/python

bench-quick: $(VENV)/.dev  ## the same in about a minute, without the peer
	$(BIN)/python benchmarks/run.py --quick

test-openjudge: $(ENVS)/openjudge/.done  ## graders of the real py-openjudge, used unchanged
	PYTHONPATH=src $(ENVS)/openjudge/bin/python -m pytest $(ALONE) tests/contract/openjudge

test-embedded: $(ENVS)/embedded/.done  ## judges and graders on a real small language model
	PYTHONPATH=$(CURDIR)/src:$(CURDIR)/lab/src $(ENVS)/embedded/bin/python -m pytest $(ALONE) tests/contract/embedded

test-notebook: $(ENVS)/notebook/.done  ## grading in the cells of a real notebook kernel
	PYTHONPATH=$(CURDIR)/src $(ENVS)/notebook/bin/python -m pytest $(ALONE) tests/contract/notebook

test-ray: $(ENVS)/ray/.done  ## one runner inside Ray workers
	PYTHONPATH=src $(ENVS)/ray/bin/python -m pytest $(ALONE) tests/contract/ray

test-ray-cluster: $(ENVS)/ray/.done  ## grading and serving on a Ray cluster of two nodes
	PYTHONPATH=src:lab/src $(ENVS)/ray/bin/python -m pytest $(ALONE) tests/contract/raycluster

test-serving: $(ENVS)/torch/.done  ## the line to a judge against a real server, `transformers serve`
	PYTHONPATH=src $(ENVS)/torch/bin/python -m pytest $(ALONE) tests/contract/serving

test-formats: $(ENVS)/torch/.done  ## the clients of OpenRLHF and LLaMA-Factory against our formats
	PYTHONPATH=src HF_HUB_OFFLINE=1 $(ENVS)/torch/bin/python -m pytest $(ALONE) tests/contract/formats

demo-live: $(ENVS)/embedded/.done  ## eight answers judged by a real small language model, about a minute
	PYTHONPATH=src $(ENVS)/embedded/bin/python -m adjudge demo --live

demo-rl: $(ENVS)/torch/.done  ## a small policy learns from a judge over HTTP: SFT, then GRPO, a minute of CPU time
	PYTHONPATH=src:lab/src OMP_NUM_THREADS=1 $(ENVS)/torch/bin/python -m adjudge_lab train examples/rl_tiny.toml

demo-judge: $(ENVS)/torch/.done  ## from preferences to a policy: SFT, Bradley-Terry, serve, evaluate, GRPO: four minutes of CPU time, more on a busy machine
	PYTHONPATH=src:lab/src OMP_NUM_THREADS=1 $(ENVS)/torch/bin/python -m adjudge_lab train examples/judge_tiny.toml

STUDY  ?= examples/study_tiny.toml
demo-study: $(ENVS)/torch/.done  ## judges with known biases, and what policies learn from them: 45 runs, 20 minutes
	PYTHONPATH=src:lab/src OMP_NUM_THREADS=1 $(ENVS)/torch/bin/python -m adjudge_lab study $(STUDY)

demo-agent: $(ENVS)/torch/.done  ## a small agent in Crafter learns from judges of turns and episodes, minutes
	PYTHONPATH=src:lab/src OMP_NUM_THREADS=1 $(ENVS)/torch/bin/python -m adjudge_lab train examples/rl_crafter_tiny.toml

test-environments: $(ENVS)/torch/.done  ## episodes of the real Crafter, judged by event and by outcome
	PYTHONPATH=src:lab/src $(ENVS)/torch/bin/python -m pytest $(ALONE) tests/contract/environments

test-sinks: $(ENVS)/sinks/.done  ## metrics in the real Trackio, TensorBoard and W&B, killed and resumed
	PYTHONPATH=src $(ENVS)/sinks/bin/python -m pytest $(ALONE) tests/contract/sinks

test-trl: $(ENVS)/torch/older-trl/.done  ## a reward spec inside the real GRPOTrainer, old and new, on a CPU
	PYTHONPATH=src:lab/src HF_HUB_OFFLINE=1 ADJUDGE_OLDER_TRL=$(ENVS)/torch/older-trl $(ENVS)/torch/bin/python -m pytest $(ALONE) tests/contract/trl

test-plugins: $(VENV)/.dev $(ENVS)/torch/.done $(ENVS)/verl061/.done  ## plug-ins in the code of trainers, in the folder SOURCES by their names in docs/conformance/trainers.toml
	PYTHONPATH=src:lab/src ADJUDGE_TRAINER_SOURCES=$(SOURCES) $(ENVS)/torch/bin/python -m pytest $(ALONE) tests/contract/plugins
	PYTHONPATH=src:lab/src ADJUDGE_TRAINER_SOURCES=$(SOURCES) ADJUDGE_SERVER_PYTHON=$(BIN)/python $(ENVS)/verl061/bin/python -m pytest $(ALONE) tests/contract/plugins/test_nemo_gym.py tests/contract/plugins/test_tinker_cookbook.py

conformance: $(ENVS)/torch/.done  ## what trainers do with a missing reward: fetch, drive, and write docs/conformance.md (SOURCES=DIR: fetched before)
	PYTHONPATH=src:lab/src $(ENVS)/torch/bin/python docs/generate_conformance.py $(if $(SOURCES),--sources $(SOURCES))

test-verifiers: $(ENVS)/verifiers/.done  ## a reward spec as judge of the real verifiers
	PYTHONPATH=src $(ENVS)/verifiers/bin/python -m pytest $(ALONE) tests/contract/verifiers

test-verl: $(ENVS)/verl061/.done  ## a reward spec inside the real RayPPOTrainer of verl 0.6.1, on a CPU
	PYTHONPATH=src:lab/src $(ENVS)/verl061/bin/python -m pytest $(ALONE) tests/contract/verl061

test-verl091: $(ENVS)/verl091/.done  ## the same in the reward actors and the V1 trainer of verl 0.9.1
	PYTHONPATH=src:lab/src $(ENVS)/verl091/bin/python -m pytest $(ALONE) tests/contract/verl091

wheel: $(VENV)/.dev  ## build the two wheels into dist/ and print their paths
	rm -rf dist && $(BIN)/python -m hatchling build -t wheel >/dev/null
	cd lab && $(abspath $(BIN))/python -m hatchling build -t wheel -d ../dist >/dev/null
	@ls dist/*.whl

sdist: wheel  ## the wheels, and the two source distributions beside them
	$(BIN)/python -m hatchling build -t sdist >/dev/null
	cd lab && $(abspath $(BIN))/python -m hatchling build -t sdist -d ../dist >/dev/null

test-wheel: wheel  ## the two built wheels: the core alone runs the demonstration, the lab adds its commands
	rm -rf dist/env && $(PYTHON) -m venv dist/env
	dist/env/bin/pip --disable-pip-version-check --quiet install --require-hashes -r requirements/core.txt
	dist/env/bin/pip --disable-pip-version-check --quiet install --no-deps dist/adjudge-*.whl
	cd dist && env/bin/adjudge demo -o demo >/dev/null && test -s demo/report.html
	cd dist && ! env/bin/adjudge train run.toml 2>without-lab && grep -q "pip install" without-lab
	dist/env/bin/pip --disable-pip-version-check --quiet install --no-deps dist/adjudge_lab-*.whl
	cd dist && env/bin/adjudge train ../examples/rl_tiny.toml --dry-run >/dev/null && env/bin/adjudge study --help >/dev/null

# Its extras come from the index as a user would get them; those that need torch are skipped by name.
release-check: $(VENV)/.dev $(ENVS)/twine/.done  ## all that must hold before a release (TAG=v0.2.0: that tag, too)
	$(BIN)/python .ci/release.py versions $(if $(TAG),--tag $(TAG))
	$(MAKE) docs test-wheel sdist
	$(ENVS)/twine/bin/twine check --strict dist/*.whl dist/*.tar.gz
	$(BIN)/python .ci/release.py install dist

lock: $(VENV)/.dev  ## renew requirements/*.txt from pyproject.toml (needs uv)
	uv pip compile --universal --generate-hashes --no-annotate -q --python-version 3.11 \
	    --custom-compile-command "make lock" pyproject.toml requirements/build.in -o requirements/core.txt
	uv pip compile --universal --generate-hashes --no-annotate -q --python-version 3.11 \
	    --custom-compile-command "make lock" pyproject.toml --extra full --extra language --extra server --group dev --group docs \
	    -c requirements/core.txt -o requirements/dev.txt

clean:  ## remove what the other targets made here
	rm -rf $(VENV) site dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
