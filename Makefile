.PHONY: check test test-long test-peers test-trl conformance test-nemo test-commits test-megatron test-isa test-isa-smoke test-report test-slurm test-stack stack-demo test-container test-docs test-gpu mutants docs nightly incidents

check:  ## lint, format, types
	uv run ruff check
	uv run ruff format --check
	uv run pyright

test:
	uv run pytest

test-long:  ## the rest of the matrices of which `make test` takes some
	uv run pytest -m long

PEERS = uv run --no-project --isolated --python 3.11 --with-requirements tests/real/peers/requirements.txt \
	--with-editable '.[lab]'

test-peers:  ## against verl's, TRL's and ms-swift's own losses, in an environment that has them
	$(PEERS) pytest -q -o addopts="" -m "not long" tests/real/peers

test-trl:  ## every method of the adapter learns in TRL's trainer, in the same environment
	$(PEERS) pytest -q -o addopts="" -m long tests/real/peers/test_trl_adapter.py

conformance:  ## the tables of tests/real/peers/conformance.md: six frameworks on our cases
	$(PEERS) python tests/real/peers/conformance_page.py

test-nemo:  ## NeMo-RL's own code on CPU, v0.7.0 and main; skipped where no checkout of it is
	@tests/real/nemo/run.sh

test-commits:  ## drawn commits of NeMo-RL, two releases, ten pull requests: hours, goes on where it was
	uv run python tests/real/nemo/commits.py

test-megatron:  ## megatron-core's parallel layouts on CPU, in an environment that has it
	@tests/real/megatron/run.sh

SUITES = test test-peers test-nemo test-megatron
OLDEST = ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE
AVX2 = ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_CBWR=AVX2
test-isa:  ## these suites on the kernels of older processors, and on this one's own
	$(OLDEST) $(MAKE) $(SUITES)
	$(AVX2) $(MAKE) $(SUITES)
	$(MAKE) $(SUITES)

NUMBERS = tests/algorithms tests/engines/local tests/lab/mismatch tests/benchmarks
test-isa-smoke:  ## of them what compares numbers, on the oldest kernels and with two threads
	$(OLDEST) OMP_NUM_THREADS=2 uv run pytest $(NUMBERS)
	$(OLDEST) NEMO_RL_REF=main tests/real/nemo/run.sh tests/real/nemo/test_grpo_train.py

test-report:  ## the report in headless Chromium
	@tests/real/browser/run.sh

test-slurm:  ## `nemo-algos slurm` on a real Slurm: three nodes in namespaces of this machine, as root
	@tests/real/slurm/run.sh

test-container:  ## docker/Dockerfile, built by buildah on a stand-in for NeMo-RL's image, as root
	@tests/real/container/run.sh

test-stack:  ## NeMo-RL with its own workers, vLLM and refit on a CPU, v0.7.0 and main; skipped where no checkout is
	@tests/real/stack/run.sh

nightly:  ## the whole of test-slurm and test-stack, hours; writes tests/real/last_whole_run.md
	@tests/real/nightly.sh

stack-demo:  ## a run inside NeMo-RL, all of it but the GPU: CONFIG=nemo_rl.yaml ARGS='--steps 3 a.b=c', some minutes
	@PYTHONPATH=$(CURDIR) $$(python3 tests/real/stack/rehearsal/machine.py)/bin/python \
		tests/real/stack/$(if $(CONFIG),rehearse.py $(CONFIG),demo.py) $(ARGS)

mutants:  ## planted mistakes, each of which must turn a test red (some minutes)
	uv run python tests/mutants.py

incidents:  ## public faults of RL stacks, and what is said of each (a minute)
	uv run --extra lab benchmarks/incidents/run.py

test-gpu:  ## what only a GPU shows: kernels, losses, the engine on CUDA (a minute)
	uv run pytest -q -o addopts="" tests/real/gpu

test-docs:  ## the shell commands of README.md and docs/, page by page
	uv sync --inexact --quiet
	python3 tests/docs/doc_commands.py

docs:  ## the site into site/, pages and links checked; site/index.html opens without a server
	uv run scripts/method_index.py
	uv run scripts/plan_tables.py
	uv run scripts/base_configs.py
	uv run scripts/replaced.py
	uv run scripts/rules.py
	for paper in etr quatro erpo apmpo; do \
		uv run examples/papers/replicate.py plan $$paper > docs/papers/$$paper.md || exit 1; done
	NO_MKDOCS_2_WARNING=1 uv run --no-project --isolated --python 3.11 \
		--with-requirements docs/requirements.txt mkdocs build --strict
