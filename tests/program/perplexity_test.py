"""examples/qwen3_dense/perplexity: the perplexity of a text is that of transformers, on every layout, and after a job was
stopped."""

import json
import math
import re
import signal
import subprocess

import torch
import transformers

import program_job
from program_job import LAUNCH, SECONDS, ProgramTest, main

WINDOWS, LENGTH = 37, 32


class Perplexity(ProgramTest):
    def setUp(self):
        """Trains and exports a tiny model, and writes a text."""
        self.trained_job = job = self.job()
        result = job.run()
        self.assertEqual(result.returncode, 0, result.stderr)
        text = (job.folder / "text.txt").read_bytes()[100:][: WINDOWS * LENGTH + 1]
        (job.folder / "unseen.txt").write_bytes(text)
        model = transformers.AutoModelForCausalLM.from_pretrained(job.export, dtype=torch.float32)
        windows = torch.tensor([list(text[i * LENGTH : i * LENGTH + LENGTH + 1]) for i in range(WINDOWS)])
        with torch.no_grad():
            logits = model(windows[:, :-1]).logits
        self.cross_entropy = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).item()
        data = job.config["data"] | {"paths": [str(job.folder / "unseen.txt")], "num_workers": 0}
        self.config = {
            "launch": LAUNCH,
            "data": data,
            "model_provider": {"model": "from_checkpoint", "checkpointing": False},
            "inference": {
                "model_stage_factory": {"source_checkpoint": str(job.export)},
                "determinism": {"base_seed": 0}, "gc": {"period_steps": "disable"},
                "checkpointing": {"save_dir": str(job.folder / "positions"), "period_steps": "disable"}}}

    def start(self, *arguments, **options):
        path = self.trained_job.folder / "perplexity.json"
        path.write_text(json.dumps(self.config))
        return subprocess.Popen([program_job.PROGRAMS / "qwen3_dense_perplexity", path, *arguments], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)

    def run_program(self, *arguments):
        process = self.start(*arguments)
        output, errors = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 0, errors)
        return output

    def assert_perplexity(self, output):
        found = re.fullmatch(r"perplexity (\S+) \(cross-entropy (\S+) of (\d+) tokens\)\n", output)
        self.assertTrue(found, output)
        self.assertEqual(int(found[3]), WINDOWS * LENGTH)
        self.assertAlmostEqual(float(found[1]), math.exp(self.cross_entropy), delta=1e-3 * math.exp(self.cross_entropy))
        return float(found[1])

    def test_every_layout_has_that_of_transformers(self):
        for mesh in ({}, {"data_parallel_replicate": 2}, {"data_parallel_shard": 3}, {"tensor_parallel": 2},
                     {"context_parallel_shard": 2}):
            with self.subTest(mesh):
                self.config["mesh"] = mesh
                size = math.prod(mesh.values())
                self.config["data"].update(global_batch_size=6, microbatch_size=6 // size if "data" in str(mesh) else 3)
                self.assert_perplexity(self.run_program())

    def test_a_stopped_job_continues_and_counts_each_sample_once(self):
        self.config["data"].update(global_batch_size=1, microbatch_size=1)
        self.config["inference"]["checkpointing"]["period_steps"] = 5
        process = self.start("inference.schedule.total_steps=null")
        for line in process.stderr:
            if "infer 10/" in line:
                process.send_signal(signal.SIGTERM)
                break
        process.communicate(timeout=SECONDS)
        self.assertIn(process.returncode, (0, 128 + signal.SIGTERM))  # 0: it was done before the signal came
        self.config["mesh"] = {"data_parallel_replicate": 1}
        self.assert_perplexity(self.run_program())


if __name__ == "__main__":
    main()
