# The two commands of the README are `make demo` and `make test`; the rest is for working on adjudge.
PYTHON ?= python3
BIN    := .venv/bin
# Environments that cannot live together with the main one are kept outside the checkout.
ENVS   := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/adjudge/envs

# Suites that run in an environment of their own, with few plug-ins.
ALONE  := -q -p no:cacheprovider -c /dev/null --rootdir . --import-mode=importlib
# A file a worker; in the order of the files, a long one does not come last.
BESIDE := -q -n 2 --dist loadfile --no-loadscope-reorder
# Files that try properties, in the main environment.
PROPERTIES = $(shell grep -rlE '^ *@given|RuleBasedStateMachine' tests lab/tests --include='test_*.py')
# The river from a sample to its reward, less what takes long.
QUICK  := reward rubric verdicts prompts judge_prompt judge_tables endpoint wire llm_grader pairwise listwise multi_judge \
    expected_score runner spec event types errors files hosts extensions
QUICK_PROPERTIES := rewards group_steps near_ties rubric_scoring strict_reading turn_advantages distributions

.PHONY: $(shell sed -n 's/^\([a-z0-9-]*\):.*/\1/p' $(firstword $(MAKEFILE_LIST)))

help:  ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

# One of requirements/environments.toml. It says what it installs and how long that took.
env-%:
	@$(PYTHON) .ci/environment.py $*

demo: env-core  ## set up and run the main job on rollouts that ship with the package
	$(BIN)/adjudge demo

# The tests start hundreds of processes: all of them read the bytecode that the first one wrote.
test: env-dev  ## set up and run the tests
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest $(BESIDE)

test-quick: env-dev  ## the part of the tests that answers in half a minute
	$(BIN)/python -m pytest $(BESIDE) $(QUICK_PROPERTIES:%=tests/property/test_%.py) \
	    $(filter-out %corpus.py %outages.py %hedging.py,$(wildcard $(QUICK:%=tests/unit/test_%*.py)))

test-needs: env-dev  ## the tests that a bare machine skips: they need bubblewrap, Chromium or recorded data
	$(BIN)/python -m pytest $(BESIDE) -m 'needs and not slow' tests lab/tests

test-service: env-dev  ## slow ones: the judge service under faults and hostile requests, the live page, whole commands
	$(BIN)/python -m pytest $(BESIDE) -m slow tests lab/tests

test-random: env-dev  ## every property with other examples each time: what they find becomes an example of its test
	$(BIN)/python -m pytest $(BESIDE) -m 'slow or not slow' --hypothesis-profile=random $(PROPERTIES)

nightly: env-dev  ## every suite that CI does not run, two beside each other; goes on where it was stopped (SUITES="test-trl …": these)
	$(PYTHON) .ci/suites.py nightly $(SUITES)

check: env-dev  ## lint, types, layers, dependencies, words
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry src
	cd lab && ../$(BIN)/deptry src
	$(BIN)/codespell docs src lab/src examples .ci Makefile *.md
	$(BIN)/python .ci/prose.py
	$(BIN)/python benchmarks/size.py --check

format: env-dev  ## format the code
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

docs: env-dev  ## build the documentation into site/
	$(BIN)/mkdocs build --strict --quiet

screenshots: env-dev  ## draw the pictures of the docs anew (needs Chromium)
	ADJUDGE_SCREENSHOTS=1 $(BIN)/python -m pytest -q -m slow tests/e2e/test_screenshots.py

bench: env-dev env-openjudge  ## speed, side by side with py-openjudge
	$(BIN)/python benchmarks/run.py --peer-python $(ENVS)/openjudge/bin/python

bench-quick: env-dev  ## the same in about a minute, without the peer
	$(BIN)/python benchmarks/run.py --quick

PEERS  := autorubric openjudge verifiers openenv
bench-peers: env-dev $(PEERS:%=env-%)  ## what four other libraries and adjudge return when the judge fails: half an hour, it waits for judges that hang
	$(BIN)/python -m benchmarks.peers_failures --json benchmarks/peers_failures.json

bench-peers-quick: env-dev $(PEERS:%=env-%)  ## the same in minutes, once each and without a judge that hangs
	$(BIN)/python -m benchmarks.peers_failures --quick

test-openjudge: env-openjudge  ## graders of the real py-openjudge, used unchanged
	PYTHONPATH=src $(ENVS)/openjudge/bin/python -m pytest $(ALONE) tests/contract/openjudge

test-embedded: env-embedded  ## judges and graders on a real small language model
	PYTHONPATH=$(CURDIR)/src:$(CURDIR)/lab/src $(ENVS)/embedded/bin/python -m pytest $(ALONE) tests/contract/embedded

test-notebook: env-notebook  ## grading in the cells of a real notebook kernel
	PYTHONPATH=$(CURDIR)/src $(ENVS)/notebook/bin/python -m pytest $(ALONE) tests/contract/notebook

test-ray: env-ray  ## one runner inside Ray workers
	PYTHONPATH=src $(ENVS)/ray/bin/python -m pytest $(ALONE) tests/contract/ray

test-ray-cluster: env-ray  ## grading and serving on a Ray cluster of two nodes
	PYTHONPATH=src:lab/src $(ENVS)/ray/bin/python -m pytest $(ALONE) tests/contract/raycluster

test-serving: env-torch  ## the line to a judge against a real server, `transformers serve`
	PYTHONPATH=src $(ENVS)/torch/bin/python -m pytest $(ALONE) tests/contract/serving

test-formats: env-torch  ## the clients of OpenRLHF and LLaMA-Factory against our formats
	PYTHONPATH=src HF_HUB_OFFLINE=1 $(ENVS)/torch/bin/python -m pytest $(ALONE) tests/contract/formats

demo-rl: env-torch  ## a small policy learns from a judge over HTTP: SFT, then GRPO, a minute of CPU time
	PYTHONPATH=src:lab/src OMP_NUM_THREADS=1 $(ENVS)/torch/bin/python -m adjudge_lab train examples/rl_tiny.toml

demo-judge: env-torch  ## from preferences to a policy: SFT, Bradley-Terry, serve, evaluate, GRPO: four minutes of CPU time, more on a busy machine
	PYTHONPATH=src:lab/src OMP_NUM_THREADS=1 $(ENVS)/torch/bin/python -m adjudge_lab train examples/judge_tiny.toml

STUDY  ?= examples/study_tiny.toml
demo-study: env-torch  ## judges with known biases, and what policies learn from them: 45 runs, 20 minutes
	PYTHONPATH=src:lab/src OMP_NUM_THREADS=1 $(ENVS)/torch/bin/python -m adjudge_lab study run $(STUDY)

demo-agent: env-torch  ## a small agent in Crafter learns from judges of turns and episodes, minutes
	PYTHONPATH=src:lab/src OMP_NUM_THREADS=1 $(ENVS)/torch/bin/python -m adjudge_lab train examples/rl_crafter_tiny.toml

test-environments: env-torch  ## episodes of the real Crafter, judged by event and by outcome
	PYTHONPATH=src:lab/src $(ENVS)/torch/bin/python -m pytest $(ALONE) tests/contract/environments

test-sinks: env-sinks  ## metrics in the real Trackio, TensorBoard and W&B, killed and resumed
	PYTHONPATH=src:lab/src $(ENVS)/sinks/bin/python -m pytest $(ALONE) tests/contract/sinks

test-trl: env-torch  ## a reward spec inside the real GRPOTrainer, on a CPU
	PYTHONPATH=src:lab/src HF_HUB_OFFLINE=1 $(ENVS)/torch/bin/python -m pytest $(ALONE) tests/contract/trl

test-plugins: env-dev env-torch env-verl061  ## plug-ins in the code of trainers, in the folder SOURCES by their names in docs/conformance/trainers.toml
	@[ -n "$(SOURCES)" ] || echo 'skipped: SOURCES names no folder of fetched trainers'
	[ -z "$(SOURCES)" ] || PYTHONPATH=src:lab/src ADJUDGE_TRAINER_SOURCES=$(SOURCES) $(ENVS)/torch/bin/python -m pytest $(ALONE) tests/contract/plugins
	[ -z "$(SOURCES)" ] || PYTHONPATH=src:lab/src ADJUDGE_TRAINER_SOURCES=$(SOURCES) ADJUDGE_SERVER_PYTHON=$(BIN)/python $(ENVS)/verl061/bin/python -m pytest $(ALONE) tests/contract/plugins/test_nemo_gym.py tests/contract/plugins/test_tinker_cookbook.py

conformance: env-torch  ## what trainers do with a missing reward: fetch, drive, and write docs/trainers.md and results/conformance.md (SOURCES=DIR: fetched before)
	PYTHONPATH=src:lab/src $(ENVS)/torch/bin/python docs/generate_conformance.py $(if $(SOURCES),--sources $(SOURCES))

test-verifiers: env-verifiers  ## a reward spec as judge of the real verifiers
	PYTHONPATH=src $(ENVS)/verifiers/bin/python -m pytest $(ALONE) tests/contract/verifiers

test-verl: env-verl061  ## a reward spec inside the real RayPPOTrainer of verl 0.6.1, on a CPU
	PYTHONPATH=src:lab/src $(ENVS)/verl061/bin/python -m pytest $(ALONE) tests/contract/verl061 tests/contract/verl_shared

test-verl091: env-verl091  ## the same in the reward actors and the V1 trainer of verl 0.9.1
	PYTHONPATH=src:lab/src $(ENVS)/verl091/bin/python -m pytest $(ALONE) tests/contract/verl091 tests/contract/verl_shared

wheel: env-dev  ## build the two wheels into dist/ and print their paths
	rm -rf dist && $(BIN)/python -m hatchling build -t wheel >/dev/null
	cd lab && $(abspath $(BIN))/python -m hatchling build -t wheel -d ../dist >/dev/null
	@ls dist/*.whl

sdist: wheel  ## the wheels, and the two source distributions beside them
	$(BIN)/python -m hatchling build -t sdist >/dev/null
	cd lab && $(abspath $(BIN))/python -m hatchling build -t sdist -d ../dist >/dev/null

test-wheel: wheel  ## the two built wheels: the core alone runs the demonstration, the lab adds its commands
	rm -rf dist/env && $(PYTHON) -m venv dist/env
	dist/env/bin/pip -qq install --require-hashes -r requirements/core.txt
	dist/env/bin/pip -qq install --no-deps dist/adjudge-*.whl
	cd dist && env/bin/adjudge demo -o demo >/dev/null && test -s demo/report.html
	cd dist && ! env/bin/adjudge train run.toml 2>without-lab && grep -q "pip install" without-lab
	dist/env/bin/pip -qq install --no-deps dist/adjudge_lab-*.whl
	cd dist && env/bin/adjudge train ../examples/rl_tiny.toml --dry-run >/dev/null && env/bin/adjudge study --help >/dev/null

# Extras come from the index as a user would get them. LIGHT=1 skips those that bring torch, by name.
release-check: env-dev env-twine  ## all that must hold before a release (TAG=v0.2.0: that tag, too; LIGHT=1: without torch)
	$(BIN)/python .ci/release.py versions $(if $(TAG),--tag $(TAG))
	$(MAKE) --no-print-directory docs test-wheel sdist
	$(BIN)/python .ci/release.py files dist
	$(ENVS)/twine/bin/twine check --strict dist/*.whl dist/*.tar.gz
	$(BIN)/python .ci/release.py install dist $(if $(LIGHT),--light)
	$(BIN)/python .ci/release.py notes dist

lock: env-dev  ## renew requirements/*.txt from pyproject.toml (needs uv)
	uv pip compile --universal --generate-hashes --no-annotate -q --python-version 3.11 \
	    --custom-compile-command "make lock" pyproject.toml requirements/build.in -o requirements/core.txt
	uv pip compile --universal --generate-hashes --no-annotate -q --python-version 3.11 \
	    --custom-compile-command "make lock" pyproject.toml --extra full --extra language --extra server --group dev --group docs \
	    -c requirements/core.txt -o requirements/dev.txt

clean:  ## remove what the other targets made here
	rm -rf .venv site dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
