"""Gradients must be summed over GPUs while backward computes those of earlier layers: checks a trace of two GPUs."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import program_job
from program_job import REPOSITORY, SECONDS, ProgramTest, main

sys.path[:0] = [str(REPOSITORY / "benchmarks/training_step"), str(REPOSITORY / "benchmarks/communication")]
import exposed  # noqa: E402: found by the line above
import models  # noqa: E402

# Each layer computes long enough for a reduction to begin and end during the backward of others.
MODEL = models.MODELS["qwen3-1.7b"]._replace(layers=12, vocabulary=16384)
STEPS = 3  # number of traced steps, which follow as many others and one more
LEAST_HIDDEN = 0.5  # of the time of reductions; without overlap it is 0; nothing overlaps the last reduction


class Overlap(ProgramTest):
    def assert_overlaps(self, name, mesh, kernels, exchange="communicator"):
        """kernels: NCCL kernels that count as reductions, in addition to copies from the other GPU."""
        folder = Path(tempfile.mkdtemp(dir=os.environ.get("TMPDIR")))
        config = models.configuration(MODEL, folder, steps=2 * STEPS + 2, warm_up=1, num_ranks=2)
        config["trace"] = {"folder": str(folder), "first_step": STEPS + 1, "num_steps": STEPS}
        config["mesh"] = mesh
        config["model_provider"]["fsdp"] = {"gather": exchange, "reduce": exchange}
        path = folder / "config.json"
        path.write_text(json.dumps(config))
        result = subprocess.run([program_job.PROGRAMS / MODEL.program, path], capture_output=True, text=True,
                                timeout=2 * SECONDS)
        self.assertEqual(result.returncode, 0, result.stderr)
        seen = exposed.read(folder / "rank0.json", only=kernels)
        print(f"{name}: {seen.communication / STEPS:.2f} ms a step of communication, {100 * seen.hidden():.0f} % beside compute", flush=True)
        self.assertGreater(seen.communication, 0, "nothing of that in the trace")
        self.assertGreater(seen.hidden(), LEAST_HIDDEN)

    def test_of_replicas(self):
        self.assert_overlaps("replicas", {"data_parallel_replicate": 2}, "AllReduce")

    def test_of_shards(self):
        self.assert_overlaps("shards", {"data_parallel_shard": 2}, "ReduceScatter")

    def test_of_shards_that_ranks_copy(self):
        self.assert_overlaps("copied shards, gathers too", {"data_parallel_shard": 2}, "no kernel", exchange="copy_engine")


if __name__ == "__main__":
    main(gpus=2)
