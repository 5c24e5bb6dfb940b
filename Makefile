# The verbs of this project. `make run` and `make test` are all a newcomer needs.
.DEFAULT_GOAL := help
PRESET ?= release
JOBS ?= $(shell nproc)
BUILD := build/$(PRESET)
# `make test` runs the labels that need no GPU and end within minutes; `make test-full` runs everything.
.PHONY: help bootstrap configure build run test test-full bench-build gpu-bundle trackers lint format tidy bench info install clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

bootstrap:  ## Install what is missing (packages when root, wheels into .venv)
	@tools/bootstrap

configure: bootstrap
	@mkdir -p build
	@cmake --preset $(PRESET) >$(BUILD)-configure.log 2>&1 || { cat $(BUILD)-configure.log; exit 1; }

build: configure  ## Configure and build everything; CUDA kernels where a GPU is, or with PRESET=cuda
	@cmake --build $(BUILD) --parallel $(JOBS) \
	  --target $(if $(wildcard /dev/nvidiactl)$(filter cuda,$(PRESET)),all,d9d_without_gpu)

run: configure  ## Train the example Qwen3-MoE on text found on this machine, export it, sample from it; builds that much
	@cmake --build $(BUILD) --parallel $(JOBS) --target qwen3_moe_pretrain
	@$(BUILD)/bin/qwen3_moe_pretrain examples/qwen3_moe/pretrain/pretrain.json

# Threads that wait sleep, since other tests want the cores.
test: build  ## Everything that runs without a GPU in minutes
	@GOMP_SPINCOUNT=0 ctest --test-dir $(BUILD) --parallel $(JOBS) --output-on-failure --no-tests=error -LE full

test-full: bootstrap  ## All matrices, sanitizers, long fuzzing; writes its summary into tests/full_runs
	@tools/test_full

gpu-bundle: build  ## Pack what tests GPUs for a machine without a compiler; tools/gpu_bundle says how to run it there
	@cmake --build $(BUILD) --parallel $(JOBS) --target d9d_cuda d9d_cudnn
	@tools/gpu_bundle $(BUILD)

trackers:  ## Install the SDKs of Aim, W&B and MLflow into .venv-trackers, for the trackers of these names
	@tools/bootstrap trackers

lint:  ## Format, include graph, headers alone, file length, forbidden words, links of pages
	@tools/bootstrap lint
	@tools/lint_selftest
	@tools/lint

format:  ## Apply clang-format
	@tools/bootstrap lint
	@find d9d tests examples benchmarks -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' | \
	  xargs clang-format-14 -i

tidy:  ## clang-tidy on files changed since main
	@tools/bootstrap tidy
	@tools/tidy

bench: bootstrap  ## Run all benchmarks that this machine can, into runs/benchmarks
	@mkdir -p build
	@cmake --preset $(PRESET) -DD9D_BUILD_BENCHMARKS=ON >$(BUILD)-configure.log 2>&1 || { cat $(BUILD)-configure.log; exit 1; }
	@cmake --build $(BUILD) --parallel $(JOBS)
	@.venv/bin/python benchmarks/run --programs $(BUILD)/bin

bench-build: bootstrap  ## Build from nothing without ccache and print where the time goes
	@tools/bench_build

info: bootstrap  ## Versions, devices, and which kernels would run on them
	@mkdir -p build
	@cmake --preset $(PRESET) >$(BUILD)-configure.log 2>&1 || { cat $(BUILD)-configure.log; exit 1; }
	@cmake --build $(BUILD) --parallel $(JOBS) --target d9d_info
	@$(BUILD)/bin/d9d_info

install: configure  ## Build and install the library, its CMake package and tools to PREFIX (default ./install)
	@cmake --build $(BUILD) --parallel $(JOBS) --target d9d_installed
	@cmake --install $(BUILD) --prefix $(or $(PREFIX),install)

clean:  ## Remove build folders
	@rm -rf build
