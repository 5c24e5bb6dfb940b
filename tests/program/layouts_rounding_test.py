"""Layouts of several GPUs in bfloat16, with the kernels used in training: their error relative to float64 may hardly
exceed that of one GPU.

    layouts_rounding_test.py <folder of the programs> [unittest's arguments]

first_step.cpp computes the gradients of one step. All runs begin with the same weights, which bfloat16 can represent.
Tokens go to the experts that one GPU in bfloat16 chooses, so that runs differ by rounding and not by ties of the
router. Prints one line for each layout: its error divided by that of one GPU. D9D_TEST_DEVICE=cpu runs the same on
threads of a CPU; D9D_FUZZ_CASES and D9D_FUZZ_SEED set the number and seed of the random layouts.
"""

import json
import math
import os
import random
import re
import subprocess
import unittest
from pathlib import Path

import program_job
from program_job import DEVICE, LAUNCH, REPOSITORY, SECONDS, ProgramTest, main, most_ranks
from safetensors.torch import load_file

NUM_RANKS = 4 if DEVICE == "cpu" or most_ranks() > 3 else 2
METHODS = ["communicator", "copy_engine"] if DEVICE == "cuda" else ["communicator"]  # of FSDP's exchange
LAYOUTS = json.loads(Path(__file__).with_name("rounding_layouts.json").read_text())  # docs/parallelism/support.md names them too
DENSE, EXPERTS, LONG = LAYOUTS["dense"], LAYOUTS["experts"], LAYOUTS["long"]
LONG_POSITIONS = 32768 if DEVICE == "cuda" else 1024


def tolerance(name):
    """A value in the table of tolerances."""
    text = (REPOSITORY / "tests/support/tolerances.h").read_text()
    return float(re.search(rf'Tolerance{{"{re.escape(name)}",\s*([0-9.e+-]+),', text)[1])


def num_ranks(mesh):
    return math.prod(degree for axis, degree in mesh.items() if axis != "expert_parallel")


def error(result, exact):
    """L2 norm of the gradients' difference divided by that of the gradient, averaged over all parameters."""
    names = [name for name in exact if name.startswith("grad.")]
    shares = [((result[name].double() - exact[name]).norm() / exact[name].norm()).item() for name in names]
    return sum(shares) / len(shares)


class Rounding(ProgramTest):
    def run_step(self, name, mesh=None, environment=None, **settings):
        folder = self.job().folder
        config = {"launch": LAUNCH, "mesh": mesh or {}, "output": str(folder / "step.safetensors"),
                  **settings}
        (folder / "step.json").write_text(json.dumps(config))
        result = subprocess.run([program_job.PROGRAMS / "first_step", folder / "step.json"], capture_output=True, text=True,
                                errors="replace", timeout=2 * SECONDS, env={**os.environ, **(environment or {})})
        self.assertEqual(result.returncode, 0, f"{name}: {result.stderr}")
        return load_file(folder / "step.safetensors"), str(folder / "step.safetensors")

    def on_one_gpu(self, exact_dtype="float64", environment=None, **model):
        """The reference results with which layouts of the model are compared. environment: of the exact one."""
        one, routing = self.run_step("one rank", dtype="bfloat16", **model)
        if model["has_experts"]:
            model["routing"] = routing
        exact, _ = self.run_step(exact_dtype, environment=environment, dtype=exact_dtype, **model)
        own = error(one, exact)
        print(f"one GPU: gradients {own:.3e} from {exact_dtype}, loss {abs((one['loss'] - exact['loss']).item()):.1e}", flush=True)
        self.assertGreater(own, 1e-4, "one GPU did not compute in bfloat16")
        return model, exact, own

    def assert_rounds_as_one_gpu(self, name, reference, mesh, **settings):
        model, exact, own = reference
        with self.subTest(name):
            result, _ = self.run_step(name, mesh, dtype="bfloat16", **settings, **model)
            ratio, distance = error(result, exact) / own, abs((result["loss"] - exact["loss"]) / exact["loss"]).item()
            print(f"{name}: {ratio:.3f} times that, loss {distance:.1e}", flush=True)
            self.assertLessEqual(ratio, tolerance("bf16 layout"))
            self.assertLessEqual(distance, tolerance("bf16 mean loss"))

    def assert_layouts_round_as_one_gpu(self, layouts, **model):
        reference = self.on_one_gpu(**model)
        for name, mesh in layouts.items():
            if num_ranks(mesh) > NUM_RANKS:
                continue
            for method in METHODS if name in ("FSDP", "hybrid") else METHODS[:1]:
                self.assert_rounds_as_one_gpu(f"{name}, {method}", reference, mesh, fsdp={"gather": method, "reduce": method})

    def test_dense_layers(self):
        self.assert_layouts_round_as_one_gpu(DENSE, has_experts=False)

    def test_experts(self):
        self.assert_layouts_round_as_one_gpu(EXPERTS, has_experts=True)

    def test_long_sequences(self):
        """Each method of attention over ranks. In float64 attention would keep all pairs of positions; in float32 it has
        a kernel that keeps none, and errs ten thousand times less than bfloat16."""
        backend = {"D9D_BACKEND_AUTO_SDPA": '{"kind": "torch", "backends": ["EFFICIENT_ATTENTION", "FLASH_ATTENTION"]}'}
        reference = self.on_one_gpu("float32", backend, has_experts=False, num_sequences=1, num_positions=LONG_POSITIONS)
        for name, mesh in LONG.items():
            if num_ranks(mesh) > NUM_RANKS:
                continue
            for attention in ("ring", "gathered", "heads"):
                self.assert_rounds_as_one_gpu(f"{LONG_POSITIONS} positions, {name}, {attention}", reference, mesh,
                                              context_parallel={"attention": attention})

    def test_random_layouts(self):
        """A failing layout is named by its settings, which are keys of first_step.cpp."""
        seed = int(os.environ.get("D9D_FUZZ_SEED", "1"))
        draw, references = random.Random(seed), {}
        for number in range(int(os.environ.get("D9D_FUZZ_CASES", "8"))):
            model = {"has_experts": draw.random() < 0.5, "checkpointing": draw.random() < 0.5}
            key = tuple(model.values())
            if key not in references:
                references[key] = self.on_one_gpu(**model)
            mesh = draw.choice([mesh for mesh in (EXPERTS if model["has_experts"] else DENSE).values()
                                if num_ranks(mesh) <= NUM_RANKS])
            fsdp = {"reshard_after_forward": draw.choice(["except_last", "always", "never"]),
                    "gradient_dtype": draw.choice([None, None, "float32"]),
                    "reduce_on_last_microbatch": draw.random() < 0.4,
                    "gather": draw.choice(METHODS), "reduce": draw.choice(METHODS)}
            gradients = {"bucket_size_mb": draw.choice([1, 32])}
            name = f"seed {seed}, {number}: {json.dumps({**model, 'mesh': mesh, 'fsdp': fsdp, 'gradients': gradients})}"
            self.assert_rounds_as_one_gpu(name, references[key], mesh, fsdp=fsdp, gradients=gradients)


if __name__ == "__main__":
    main(ranks=2)
