# Two commands on a machine with Python 3.11 and make: `make demo` and `make test`. Everything goes into .venv.
# With Docker: `make cluster` starts four hosts to launch on, `make test-docker` tests on four of its own.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check install --quiet --constraint constraints.txt
SYSTEMS := tensorflow,torch,hugging-face,datarax,images,processes,object-stores
SOURCES := src/hostmesh/__init__.py src/hostmesh/__main__.py launcher worker tests examples benchmarks
# Many tests wait for a process or a signal: two workers for each core keep it busy meanwhile, and three where all tests do.
WORKERS ?= $(or $(shell expr $$(getconf _NPROCESSORS_ONLN) \* 2),auto)
SLOW_WORKERS ?= $(or $(shell expr $$(getconf _NPROCESSORS_ONLN) \* 3),auto)
PARALLEL := $(BIN)/pytest --dist loadgroup --durations=10
CLUSTER_SCRIPT := PYTHON=$(BIN)/python docker/cluster.sh
# Tests start Python thousands of times: without compiled modules each start would compile the launcher anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow test-newest test-docker test-slurm test-kubernetes check soak benchmark clean
.PHONY: cluster cluster-image cluster-down cluster-clean slurm-cluster slurm-cluster-down kubernetes-cluster kubernetes-cluster-down

demo: $(VENV)/core
	$(BIN)/launch --local 4 --devices 2

test: $(VENV)/test
	$(PARALLEL) -n $(WORKERS) -m 'not slow' $(PYTEST)

test-slow: $(VENV)/test
	$(PARALLEL) -n $(SLOW_WORKERS) -m slow $(PYTEST)

# A few tests of every part with the newest Python and jax that install, where there is a Python newer than 3.11.
test-newest:
	.ci/newest.sh $(VENV)-newest
	test ! -x $(VENV)-newest/bin/pytest || $(VENV)-newest/bin/pytest -n auto -m newest $(PYTEST)

test-docker: $(VENV)/test
	$(CLUSTER_SCRIPT) image
	HOSTMESH_DOCKER=required $(BIN)/pytest -m docker $(PYTEST)

test-slurm: $(VENV)/test
	$(CLUSTER_SCRIPT) image
	docker/slurm.sh image
	HOSTMESH_SLURM=required $(BIN)/pytest -m slurm $(PYTEST)

# On a Kubernetes of our own (as root), or on the one that HOSTMESH_KUBECONFIG names.
test-kubernetes: $(VENV)/test
	test -n "$(HOSTMESH_KUBECONFIG)" || { $(CLUSTER_SCRIPT) image && docker/kubernetes.sh up; }
	HOSTMESH_KUBERNETES=required $(BIN)/pytest -m kubernetes $(PYTEST)

kubernetes-cluster: $(VENV)/core
	$(CLUSTER_SCRIPT) image
	docker/kubernetes.sh up

kubernetes-cluster-down:
	docker/kubernetes.sh down

check: $(VENV)/test
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy

# One run that is hit by a fault of every kind from which it recovers.
soak: $(VENV)/test
	$(BIN)/python benchmarks/soak.py --runs 1

benchmark: $(VENV)/benchmark
	$(BIN)/python benchmarks/launch_time.py
	$(BIN)/python benchmarks/failure_time.py
	$(BIN)/python benchmarks/loading.py
	$(BIN)/python benchmarks/loading_jpeg.py
	$(BIN)/python benchmarks/loading_text.py
	$(BIN)/python benchmarks/loading_remote.py

cluster: $(VENV)/core
	$(CLUSTER_SCRIPT) up

cluster-image: $(VENV)/core
	$(CLUSTER_SCRIPT) image

cluster-down: $(VENV)/python
	$(CLUSTER_SCRIPT) down

cluster-clean: $(VENV)/python
	$(CLUSTER_SCRIPT) clean

# Three nodes of a real Slurm, the first of them the login node.
slurm-cluster: $(VENV)/core
	$(CLUSTER_SCRIPT) image
	docker/slurm.sh up

slurm-cluster-down:
	docker/slurm.sh down

clean:
	rm -rf $(VENV) $(VENV)-newest runs

$(VENV)/python:
	$(PYTHON) -m venv $(VENV) || python3 -m venv $(VENV)
	touch $@

$(VENV)/core: $(VENV)/python pyproject.toml constraints.txt
	$(PIP) --editable .
	touch $@

# One pip uses one core: the two largest packages come beside what has nothing to do with them, and then the rest. Half of pip's
# time would go into compiling modules one by one; all cores do that here. Some modules are for a newer Python, and stay as they are.
$(VENV)/test: $(VENV)/python pyproject.toml constraints.txt
	$(PIP) --no-compile --no-deps --no-warn-conflicts tensorflow torch & large=$$!; $(PIP) --no-compile --editable '.[test,dev]' && wait $$large
	$(PIP) --no-compile --editable '.[test,dev,$(SYSTEMS)]'
	$(BIN)/python -m compileall -qq -j 0 -x '/tests/' $(VENV)/lib || true
	touch $(VENV)/core $@

$(VENV)/benchmark: $(VENV)/core
	$(PIP) --editable '.[test,$(SYSTEMS)]'
	touch $@
