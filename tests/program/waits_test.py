"""The host must not wait for a GPU between the first forward of a step and its optimiser; waits are counted in a trace
of CUDA's calls."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import program_job
from program_job import REPOSITORY, SECONDS, ProgramTest, main, num_gpus

sys.path.insert(0, str(REPOSITORY / "benchmarks/training_step"))
import models  # noqa: E402: found by the line above
import waits  # noqa: E402

SMALL = {"layers": 2, "hidden": 256, "intermediate": 512, "vocabulary": 4096, "sequence": 512}
STEPS = 4  # number of traced steps, which follow as many others
OWN_COPIES = 1  # of the step's loss and norm, asynchronous


class Waits(ProgramTest):
    def steps(self, model, **settings):
        """The traced steps of training a small model."""
        folder = Path(tempfile.mkdtemp(dir=os.environ.get("TMPDIR")))
        config = models.configuration(model, folder, steps=2 * STEPS + 1, warm_up=1)  # the last one logs
        config["trace"] = {"folder": str(folder), "first_step": STEPS, "num_steps": STEPS}
        for section, values in settings.items():
            config[section].update(values)
        path = folder / "config.json"
        path.write_text(json.dumps(config))
        result = subprocess.run([program_job.PROGRAMS / model.program, path], capture_output=True, text=True, timeout=SECONDS)
        self.assertEqual(result.returncode, 0, result.stderr)
        return waits.steps_of(waits.read(folder / "rank0.json"))

    def assert_no_waits(self, steps, own_copies=OWN_COPIES):
        self.assertGreaterEqual(len(steps), STEPS - 1)
        for step in steps:
            self.assertEqual(dict(step.waits), {})
            self.assertLessEqual(step.copies_to_host, own_copies)

    def test_a_dense_step_has_none(self):
        model = models.MODELS["qwen3-1.7b"]._replace(**SMALL)
        self.assert_no_waits(self.steps(model))
        self.assert_no_waits(self.steps(model, optimizer=models.OPTIMIZERS["stochastic_adamw"]))
        for optimizer in models.OPTIMIZERS.values():  # of parameters as wide as their averages, and of narrower ones
            self.assert_no_waits(self.steps(model, optimizer=optimizer, trainer={"ema": {"decay": 0.999, "warmup": True}}))
        microbatches = {"global_batch_size": 2 * model.microbatch}
        self.assert_no_waits(self.steps(model, data=microbatches, model_provider={"checkpointing": True}))

    def test_a_step_of_experts_has_none(self):
        model = models.MODELS["qwen3-moe-small"]._replace(**SMALL, experts=16, experts_top_k=4)
        self.assert_no_waits(self.steps(model))
        every_step = self.steps(model, trainer={"logging": {"period_steps": 1, "tracker": {"provider": "null"}}})
        self.assert_no_waits(every_step, own_copies=OWN_COPIES + 1)  # the additional copy is that of logged values

    def test_a_padded_step_has_none(self):
        """A document a row, of any length: the rest of the row is padding, which experts do not see."""
        model = models.MODELS["qwen3-moe-small"]._replace(**SMALL, experts=16, experts_top_k=4)
        documents = {"end_of_document": 0, "view": {"kind": "documents", "long_documents": "truncate"}}
        layer = {**model.config()["layer"], "router_auxiliary_loss_coefficient": 0.01}
        self.assert_no_waits(self.steps(model._replace(vocabulary=256), data=documents,
                                        model_provider={"model": {**model.config(), "layer": layer}}))

    def test_a_pipelined_step_has_none(self):
        """Of several stages on one GPU, and over two where there are two: over copies nothing is posted."""
        model = models.MODELS["qwen3-1.7b"]._replace(**{**SMALL, "layers": 4})
        microbatches = {"global_batch_size": 4 * model.microbatch}
        for mesh in ({}, {"pipeline_parallel": 2}) if num_gpus() > 1 else ({},):
            for schedule in ({"schedule": "1f1b", "num_stages_per_rank": 2, "zero_bubble": True},
                             {"schedule": "zero_bubble_v"}, {"schedule": "dual_pipe_v"}):
                with self.subTest(mesh=mesh, schedule=schedule):
                    self.assert_no_waits(self.steps(model, data=microbatches, mesh=mesh,
                                                    trainer={"pipelining": {"schedule": schedule}}))

    def test_a_step_between_evaluations_has_none(self):
        """With a line in the log for each step. The evaluations wait for their values, in a range of the trace."""
        job = self.job()
        job.config["evaluation_data"] = {"validation": job.config["data"]}
        trainer = job.config["trainer"]
        trainer["schedule"]["total_steps"] = 2 * STEPS + 1
        trainer["logging"]["period_steps"] = 1
        trainer["evaluation"] = {"validation": {"period_steps": 1, "max_packs": 2}}
        trainer["profiling"] = {"traces_dir": str(job.folder / "traces"), "period_steps": 2 * STEPS, "warmup_steps": 1,
                                "active_steps": STEPS}
        result = job.run()
        self.assertEqual(result.returncode, 0, result.stderr)
        trace, = (job.folder / "traces").rglob("*.json")
        events = waits.read(trace)
        evaluations = [(event["ts"], event["ts"] + event["dur"]) for event in events
                       if event.get("name") == "evaluation validation" and event["cat"] != "gpu_user_annotation"]
        self.assertEqual(len(evaluations), STEPS)
        outside = [event for event in events if "ts" in event and
                   not any(begin <= event["ts"] < end for begin, end in evaluations)]
        self.assert_no_waits(waits.steps_of(outside), own_copies=OWN_COPIES + 1)

    def test_gpus_that_the_environment_hides_are_not_counted(self):
        """Nor are ranks that share one."""
        count = "import program_job; print(program_job.num_gpus(), program_job.most_ranks())"
        for visible, numbers in (("", "0 0"), ("0", "1 4")):
            result = subprocess.run([sys.executable, "-c", count], text=True, cwd=Path(__file__).parent,
                                    env={**os.environ, "CUDA_VISIBLE_DEVICES": visible, "D9D_TEST_RANKS_PER_GPU": "4"},
                                    capture_output=True, timeout=SECONDS)
            self.assertEqual(result.stdout.strip(), numbers, result.stderr)


if __name__ == "__main__":
    main()
