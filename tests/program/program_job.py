"""Drives the pretraining examples as a user does: command lines, files, signals, a terminal. Each topic is a file:

    <topic>_test.py <folder of the programs> [unittest's arguments]
"""

import ctypes
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAMS = Path()  # set by main
DEVICE = os.environ.get("D9D_TEST_DEVICE", "cpu")  # or cuda
RANKS_PER_GPU = int(os.environ.get("D9D_TEST_RANKS_PER_GPU", "1"))
LAUNCH = {"device": DEVICE, "num_threads": 1, "ranks_per_gpu": RANKS_PER_GPU}
TOO_FEW_GPUS = 77  # the exit code of a test that was not run
# Logged values that measure a run, and so differ between two runs of one job.
MEASURED = ("time", "step_seconds", "data_seconds", "tokens_per_second", "mfu", "host_bytes", "device_peak_bytes")
SECONDS = 60  # far more than a program of this test needs
VOCABULARY = 256
PIECEWISE = [
    {"mode": "steps", "steps": 2, "target_multiplier": 1.0, "curve": {"type": "linear"}},
    {"mode": "rest", "target_multiplier": 0.1, "curve": {"type": "cosine"}},
]

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # programs would start themselves anew for it, a quarter of a second


def write_headers(folder, count):
    """Writes C++ headers as examples/finetune learns them, and returns their folder in `folder`."""
    headers = folder / "include/c10/util"
    headers.mkdir(parents=True)
    for i in range(count):
        (headers / f"Part{i}.h").write_text(f"#pragma once\n#include <c10/util/Part{i + 1}.h>\nstruct Part{i} {{}};\n" * 20)
    return headers


def pretrains_small(headers):
    """Arguments with which examples/finetune/pretrain.json trains a model of one narrow layer on such headers."""
    layer = "model_provider.model.layer"
    return (f'data.paths=["{headers}/*.h"]', "trainer.schedule.total_steps=20", "data.sequence_length=64",
            "model_provider.model.num_hidden_layers=1", f"{layer}.hidden_size=32", f"{layer}.intermediate_size=48",
            f"{layer}.head_dim=8")  # fmt: skip


class Job:
    """A folder with the shipped configuration of one example, made tiny."""

    def __init__(self, folder, model="dense"):
        self.folder = Path(folder)
        self.program = PROGRAMS / f"qwen3_{model}_pretrain"
        text = self.folder / "text.txt"
        text.write_text("".join(f"line {i}: {i * i}\n" for i in range(400)))
        shipped = REPOSITORY / f"examples/qwen3_{model}/pretrain/pretrain.json"
        self.config = config = json.loads(shipped.read_text())
        config["launch"] = dict(LAUNCH)
        config["data"].update(paths=[str(text)], sequence_length=32, global_batch_size=8, microbatch_size=4)
        config["model_provider"]["model"]["num_hidden_layers"] = 1
        config["model_provider"]["model"]["layer"].update(
            hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=8)
        config["trainer"]["schedule"]["total_steps"] = 5
        config["lr_scheduler"]["scheduler"]["phases"] = PIECEWISE
        self.metrics = self.folder / "run/metrics.jsonl"
        self.tensorboard = self.folder / "run/tensorboard"
        jsonl, tensorboard = config["trainer"]["logging"]["tracker"]["trackers"]
        jsonl["path"], tensorboard["log_dir"] = str(self.metrics), str(self.tensorboard)
        self.export = self.folder / "run/export"
        config["export_to"] = str(self.export)

    def command(self, *arguments):
        path = self.folder / "pretrain.json"
        path.write_text(json.dumps(self.config))
        return [str(self.program), str(path), *arguments]

    def run(self, *arguments, command=None, environment=None, **options):
        return subprocess.run(command or self.command(*arguments), capture_output=True, timeout=SECONDS,
                              encoding="utf-8", errors="replace",  # the sample of a byte-level model is any bytes
                              cwd=self.folder, env={**os.environ, **(environment or {})}, **options)

    def start(self, *arguments, **options):
        return subprocess.Popen(self.command(*arguments), cwd=self.folder, **options)

    def losses(self):
        return [step["loss"] for step in self.steps()]

    def steps(self):
        return [json.loads(line) for line in self.metrics.read_text().splitlines()]

    def leftovers(self):
        return [str(path) for path in self.folder.rglob("*.tmp-*")]


class ProgramTest(unittest.TestCase):
    def job(self, model="dense"):
        folder = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
        self.addCleanup(shutil.rmtree, folder)
        return Job(folder, model)

    def trained(self, model="dense", arguments=(), **sections):
        """Losses of a run with changed `sections` of the configuration."""
        job = self.job(model)
        for section, values in sections.items():
            job.config[section].update(values)
        result = job.run(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return job.losses()

    def assert_refused(self, job, result, *words, exit_code=1):
        """Expects one line on standard error that contains `words`, beside what the log tells, no training, and no
        incomplete files."""
        self.assert_one_error(result, *words, exit_code=exit_code)
        others = [line for line in result.stderr.splitlines() if " - INFO - " not in line]
        self.assertEqual(len(others), 1, result.stderr)
        self.assertFalse(job.metrics.exists() and job.metrics.read_text(), "a step was logged")
        self.assert_nothing_half_written(job)

    def assert_one_error(self, result, *words, exit_code=1):
        self.assertEqual(result.returncode, exit_code, result.stderr)
        errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        self.assertEqual(len(errors), 1, result.stderr)
        self.assertEqual(result.stderr.splitlines()[-1], errors[0])
        for word in words:
            self.assertIn(str(word), errors[0])
        self.assertNotRegex(errors[0], r"std::|c10::|at::|basic_string|nlohmann|\x1b", "C++ in a message for users")

    def assert_nothing_half_written(self, job):
        self.assertFalse(job.export.exists(), "an export of a job that failed")
        self.assertEqual(job.leftovers(), [])


@functools.cache
def num_gpus():
    """Those that CUDA gives this process. CUDA_VISIBLE_DEVICES and a container leave out some that the machine has."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    number = ctypes.c_int()
    is_counted = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(number)) == 0
    return number.value if is_counted else 0


def most_ranks():
    """Of a job with LAUNCH on GPUs, of which each has D9D_TEST_RANKS_PER_GPU ranks."""
    return num_gpus() * RANKS_PER_GPU


def main(gpus=1, ranks=1):
    """gpus, ranks: numbers that the tests need if D9D_TEST_DEVICE is cuda. ranks: of jobs with LAUNCH."""
    global PROGRAMS
    PROGRAMS = Path(sys.argv.pop(1)).resolve()
    if DEVICE == "cuda" and (num_gpus() < gpus or most_ranks() < ranks):
        print(f"expected {gpus} GPUs for {ranks} ranks, got {num_gpus()} for {most_ranks()}")
        sys.exit(TOO_FEW_GPUS)
    unittest.main()
