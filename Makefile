# RLJob. `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
# The first Python 3.12 that starts: a pyenv shim may exist and not
PYTHON312 ?= $(shell for p in python3.12 $(HOME)/.pyenv/versions/3.12.*/bin/python; do $$p -c '' 2>/dev/null && { command -v $$p; break; }; done)
VENV := .venv
PY := $(VENV)/bin/python
LOCK := $(VENV)/bin/uv pip compile -q --python-version 3.12 --generate-hashes --custom-compile-command 'make lock'
# make for targets of a target that has set up the environment
AGAIN := $(MAKE) --no-print-directory -o setup
# Five targets at once, for two cores: some of them wait, for a server or a clock. What each says comes in one piece, when it has ended
AT_ONCE := $(AGAIN) -j5 --output-sync=target
# Fast tests in parts that take about as long: the operator, what a rank computes and sends, a user's code in processes next to the driver, other
# processes of pods, and what is left. Those that wait most begin first, and the one that only computes fills what they leave
FAST_OPERATOR := $(patsubst %,tests/%/,api operator placement repository)
FAST_RANKS := $(patsubst %,tests/trainer/%/,algorithm checkpoint data megatron rank server wire) $(wildcard tests/trainer/test_*.py)
FAST_WORKERS := $(patsubst %,tests/trainer/%/,agents custom_rows local rewards sandboxes workers)
FAST_PODS := $(filter-out $(FAST_RANKS) $(FAST_WORKERS) %/__pycache__/,$(wildcard tests/trainer/*/))
FAST := fast-pods fast-workers fast-rest fast-ranks fast-operator
# Slow tests: Megatron's ranks; an operator with an API server, after the cluster's programs are compiled; and what is left, most of it with vLLM.
# Files without a slow test are not imported
SLOW_REST = $(filter-out tests/trainer/megatron/% tests/apiserver/%,$(sort $(shell grep -rlE 'mark\.(slow|extra)' tests --include='test_*.py')))
export OMP_NUM_THREADS ?= 1
# Containers often set it. Without bytecode every process of a test compiles torch, transformers and vLLM again
unexport PYTHONDONTWRITEBYTECODE
# For tests of processes and networks: what fails runs once more with fresh servers, so that no busy machine decides.
# Failing twice is a failure. Failing once is a race: the log names it, and somebody looks for it
PYTEST_TWICE = run() { $(PY) -m pytest -q -o cache_dir=.pytest_cache/$@ "$$@"; }; \
	twice() { run "$$@" || { echo "== $@: what failed, once more"; run "$$@" --last-failed --last-failed-no-failures none; }; }; twice
# End to end the tests of a file follow one job: a file that failed runs once more as a whole, in a new namespace
E2E_TWICE = run() { $(PY) -m pytest -q -o cache_dir=.pytest_cache/$@-e2e "$$@" --durations=0 --durations-min=1; }; \
	failed() { sed -n 's/^ *"\(e2e[^:]*\)::.*/\1/p' .pytest_cache/$@-e2e/v/cache/lastfailed | sort -u; }; \
	twice() { run "$$@" e2e || { again=$$(failed); test -n "$$again" || return 1; echo "== $@: $$again, once more"; run "$$@" $$again; }; }; twice

##@ For users
.PHONY: demo
demo: setup ## Bring up a cluster if there is none, install the operator, train the arithmetic example, show the curve
	$(PY) -m e2e.demo

.PHONY: cluster-up
cluster-up: setup ## Bring up the local cluster, with images and the operator
	$(PY) -m e2e.stack

.PHONY: cluster-down
cluster-down: setup ## Stop the cluster and leave nothing behind
	$(PY) -m e2e.providers down

##@ For developers
.PHONY: setup
setup: $(VENV)/.installed ## Create the Python environment from the locked requirements

# An environment that can install packages, and no more
$(VENV)/bin/uv:
	@test -n "$(PYTHON312)" || { echo "Python 3.12 is needed: install it, or set PYTHON312 to its path"; exit 1; }
	@test -x $(PY) || { echo "setup: creating $(VENV)"; $(PYTHON312) -m venv $(VENV); }
	$(PY) -m pip install -q --require-hashes --no-deps -r images/trainer/installer.txt

$(VENV)/.installed: tests/requirements.txt pyproject.toml | $(VENV)/bin/uv
	@echo "setup: installing the locked requirements (about 6 GB)"
	$(VENV)/bin/uv pip sync -q --python $(PY) --require-hashes tests/requirements.txt
	$(VENV)/bin/uv pip install -q --python $(PY) --no-deps --no-build-isolation -e .
	@touch $@
	@echo "setup: done; to use it: . $(VENV)/bin/activate"

.PHONY: check
check: setup ## Format, lint, layers, types, generated files, fast tests (about 10 minutes on two cores)
	$(AT_ONCE) lint $(FAST)

.PHONY: lint
lint: setup
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/lint-imports
	$(VENV)/bin/mypy
	+$(AGAIN) generate-check docs

.PHONY: fast
fast: setup
	$(AT_ONCE) $(FAST)

.PHONY: fast-pods
fast-pods: setup
	$(PYTEST_TWICE) -m "not slow" $(FAST_PODS)

.PHONY: fast-workers
fast-workers: setup
	$(PYTEST_TWICE) -m "not slow" $(FAST_WORKERS)

.PHONY: fast-operator
fast-operator: setup
	$(PYTEST_TWICE) -m "not slow" $(FAST_OPERATOR)

.PHONY: fast-ranks
fast-ranks: setup
	$(PYTEST_TWICE) -m "not slow" $(FAST_RANKS)

.PHONY: fast-rest
fast-rest: setup
	$(PYTEST_TWICE) -m "not slow" tests $(patsubst %,--ignore=%,$(FAST_PODS) $(FAST_WORKERS) $(FAST_OPERATOR) $(FAST_RANKS))

.PHONY: test
test: check ## Everything: check, the trainer on real megatron-core and vLLM, end to end on the cluster
	$(AT_ONCE) slow-operator slow-rest slow-megatron
	$(E2E_TWICE) -m "not extra"

.PHONY: fuzz
fuzz: setup ## Properties on examples that no run had before
	$(PY) -m pytest -q --hypothesis-profile=fuzz -m "hypothesis and not slow" tests

.PHONY: test-all
test-all: test fuzz ## Everything, with the tests that take longest
	$(PYTEST_TWICE) -m extra tests
	$(E2E_TWICE) -m extra

.PHONY: slow-operator
slow-operator: cluster
	$(PYTEST_TWICE) -m "not extra" tests/chart tests/gitops
	$(PYTEST_TWICE) -m "slow and not extra" tests/apiserver --durations=10

.PHONY: slow-rest
slow-rest: setup
	$(PYTEST_TWICE) -m "slow and not extra" $(SLOW_REST) --durations=10

.PHONY: slow-megatron
slow-megatron: setup
	$(PYTEST_TWICE) -m "slow and not extra" tests/trainer/megatron --durations=10

.PHONY: cluster
cluster: setup # builds helm, etcd and kube-apiserver, without which some tests skip
	$(PY) -m e2e.providers up

.PHONY: e2e
e2e: setup ## The end-to-end tests alone
	$(PY) -m pytest -q e2e --durations=0 --durations-min=1

.PHONY: kueue
kueue: export RLJOB_KUEUE = $(KUEUE)
kueue: setup ## Compile Kueue, and test jobs that it places or sends to another cluster: KUEUE=0.18 for another release (not part of test: minutes of compiling)
	@test -z "$(KUEUE)" -o -d e2e/cluster/components/kueue-$(KUEUE) || { echo "KUEUE is one of $$(cd e2e/cluster/components && ls -d kueue-* | sed s/kueue-// | xargs)"; exit 1; }
	$(PY) -m e2e.kueue
	$(PY) -m pytest -q -m "slow or extra" tests/kueue e2e/test_x_kueue.py

.PHONY: test-kubernetes
test-kubernetes: export RLJOB_KUBERNETES = $(VERSION)
test-kubernetes: setup ## The tests of API server and cluster on another Kubernetes: VERSION=1.34 (or 1.35, 1.36)
	@test -f e2e/cluster/components/kubernetes/$(VERSION)/go.mod || { echo "VERSION is one of $$(ls e2e/cluster/components/kubernetes | xargs)"; exit 1; }
	+$(AGAIN) cluster
	$(PYTEST_TWICE) -m "slow and not extra" tests/apiserver --durations=10
	$(E2E_TWICE) -m "not extra"

.PHONY: format
format: setup ## Format and mend what the linter can
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

.PHONY: plugin
plugin: | $(VENV)/bin/uv ## Build dist/kubectl-rljob.pyz: the plugin in one file, for Python 3.10 to 3.13 (PLATFORM=aarch64-apple-darwin for Macs)
	$(PY) images/plugin/build.py dist/kubectl-rljob.pyz $(PLATFORM)

.PHONY: docs
docs: setup ## Build the documentation in dist/site, and fail at links and anchors that lead nowhere
	@rm -rf dist/pages && mkdir -p dist/pages
	@ln -s $(foreach page,README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE docs examples gitops,$(CURDIR)/$(page)) dist/pages/
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build

##@ Generated files
.PHONY: generate
generate: setup ## Write the CRD, known keys, reference pages and pictures again
	$(PY) -m docs.generated
	$(PY) gitops/argocd/config_map.py gitops/argocd/argocd-cm.yaml
	$(PY) -W ignore -m rljob_trainer.commands.known_keys

.PHONY: generate-check
generate-check: setup ## Fail when a generated file has drifted
	@$(PY) -m docs.generated --check
	@$(PY) gitops/argocd/config_map.py /dev/stdout | diff -u gitops/argocd/argocd-cm.yaml -

.PHONY: lock
lock: ## Resolve the requirements again, with hashes
	$(LOCK) pyproject.toml --extra operator -o images/operator/requirements.txt
	$(LOCK:3.12=3.10) --universal operator/pyproject.toml -o images/plugin/requirements.txt
	$(LOCK) images/trainer/installer.in -o images/trainer/installer.txt
	$(LOCK) pyproject.toml images/trainer/requirements.in -o images/trainer/requirements.txt
	$(LOCK) pyproject.toml images/megatron/requirements.in -o images/megatron/requirements.txt
	$(LOCK) images/megatron/torch.in -c images/megatron/requirements.txt -o images/megatron/torch.txt
	$(LOCK) --no-deps images/megatron/transformer-engine.in -o images/megatron/transformer-engine.txt
	$(LOCK) pyproject.toml tests/requirements.in --extra operator --extra cli --extra docs -o tests/requirements.txt

##@ Other
.PHONY: help
help: ## Show this
	@awk 'BEGIN {FS = ":.*##"} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*##/ {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
