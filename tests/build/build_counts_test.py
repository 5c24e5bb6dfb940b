"""What a build from nothing compiles, in counts, which do not depend on the machine as times would (tools/bench_build measures
those). A count that has grown is either brought down or raised here, in a commit that says why.

  build_counts_test.py BUILD NINJA CXX SITE_PACKAGES
"""

import subprocess
import sys
import unittest
from pathlib import Path

BUILD, NINJA, CXX, SITE_PACKAGES = sys.argv[1:]
del sys.argv[1:]
SOURCE = Path(__file__).resolve().parents[2]

MAX_STEPS_OF_RUN = 46      # compile steps before the first training step of `make run`
MAX_PRECOMPILED_UNITS = 80  # units with LibTorch's precompiled header: 1.5 s each, whatever is in them
MAX_TRAINER_HEADERS = 120  # headers of this library behind d9d/loop/run/trainer.h


def compile_steps(*targets):
    commands = subprocess.run([NINJA, "-C", BUILD, "-t", "commands", *targets], capture_output=True, text=True, check=True)
    return [line for line in commands.stdout.splitlines() if " -c " in line]


class BuildCounts(unittest.TestCase):
    def test_steps_before_the_first_training_step(self):
        self.assertLessEqual(len(compile_steps("qwen3_moe_pretrain")), MAX_STEPS_OF_RUN)

    def test_units_with_the_precompiled_header(self):
        units = [line for line in compile_steps() if "cmake_pch.hxx " in line and " -o benchmarks/" not in line]
        self.assertGreater(len(units), MAX_PRECOMPILED_UNITS // 2, "expected a build with the precompiled header")
        self.assertLessEqual(len(units), MAX_PRECOMPILED_UNITS)

    def test_headers_behind_the_trainer(self):
        torch = Path(SITE_PACKAGES) / "torch/include"
        rule = subprocess.run([CXX, "-std=c++20", "-MM", "-I", SOURCE, "-isystem", torch, "-isystem",
                               torch / "torch/csrc/api/include", "-x", "c++", SOURCE / "d9d/loop/run/trainer.h"],
                              capture_output=True, text=True, check=True).stdout
        headers = sorted({word for word in rule.split() if word.startswith(f"{SOURCE}/d9d/")})
        self.assertLessEqual(len(headers), MAX_TRAINER_HEADERS, "\n".join(headers))


if __name__ == "__main__":
    unittest.main()
