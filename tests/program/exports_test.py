"""Exports while a job trains, and exports of its checkpoints by d9d_convert, which needs neither data nor optimiser."""

import json
import subprocess

import program_job
import torch
import transformers
from program_job import ProgramTest, main

STEPS = (2, 4)


class Exports(ProgramTest):
    def exporting(self, model, **of_model):
        """A job that saves and exports every second step."""
        job = self.job(model)
        job.saves, job.exports = job.folder / "checkpoints", job.folder / "exports"
        job.config["trainer"]["checkpointing"] = {"save_dir": str(job.saves), "period_steps": STEPS[0]}
        job.config["trainer"]["exports"] = {"folder": str(job.exports), "period_steps": STEPS[0]}
        job.config["model_provider"]["model"].update(of_model)
        return job

    def convert(self, *arguments, code=0):
        done = subprocess.run([program_job.PROGRAMS / "d9d_convert", *map(str, arguments)], capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout + done.stderr

    def content(self, folder):
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    def trained(self, job, *arguments):
        result = job.run(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(sorted(path.name for path in job.exports.iterdir()), [f"step-{step}" for step in STEPS])
        for path in (job.folder / "text.txt", job.folder / "pretrain.json"):
            path.unlink()  # no data, no configuration

    def assert_exports_checkpoints(self, job, *arguments):
        self.trained(job, *arguments)
        for step in STEPS:
            made, expected = job.folder / f"made-{step}", job.exports / f"step-{step}"
            self.convert(job.saves / f"save-{step}", made, "--files", expected, "--workers", 3)
            self.assertEqual(self.content(made), self.content(expected), step)
        self.assertNotEqual(self.content(job.exports / "step-2"), self.content(job.exports / "step-4"))
        return expected

    def test_a_checkpoint_gives_the_bytes_of_the_export_of_its_step(self):
        for model in ("dense", "moe"):
            for dtype, master in (("float32", None), ("bfloat16", "float32"), ("bfloat16", None)):
                with self.subTest(model=model, dtype=dtype, master=master):
                    job = self.exporting(model)
                    job.config["model_provider"]["dtype"] = dtype
                    job.config["trainer"]["model_stage_factory"] = {"master_dtype": master}
                    exported = self.assert_exports_checkpoints(job)
                    self.assertEqual(transformers.AutoConfig.from_pretrained(exported).dtype, getattr(torch, dtype))

    def test_a_checkpoint_gives_averaged_and_trained_weights(self):
        for dtype, master in (("bfloat16", "float32"), ("bfloat16", None)):
            with self.subTest(dtype=dtype, master=master):
                contents = {}
                for exported in ("averaged", "trained"):
                    job = self.exporting("dense")
                    job.config["model_provider"]["dtype"] = dtype
                    job.config["trainer"]["model_stage_factory"] = {"master_dtype": master}
                    job.config["trainer"]["ema"] = {"decay": 0.5, "export": exported}
                    made = self.assert_exports_checkpoints(job, "mesh.data_parallel_shard=2", "data.microbatch_size=2")
                    contents[exported] = self.content(made)
                for weights, expected in contents.items():
                    made = job.folder / weights
                    self.convert(job.saves / "save-4", made, "--weights", weights, "--files", job.exports / "step-4")
                    self.assertEqual(self.content(made), expected)
                self.assertNotEqual(contents["averaged"], contents["trained"])

    def test_averages_that_a_checkpoint_lacks_are_missed(self):
        job = self.exporting("dense")
        self.trained(job)
        self.assertIn("expected averages of the weights", self.convert(job.saves, job.folder / "made", "--weights=averaged", code=2))
        self.assertIn("expected --weights and --adapters with a checkpoint",
                      self.convert(job.export, job.folder / "made", "--weights=trained", code=2))

    def test_a_checkpoint_of_many_ranks_and_splits_does_too(self):
        splits = {"split_vocab_size": {"special": 56, "regular": 200}, "split_vocab_order": ["regular", "special"]}
        for model, mesh, of_model in (("moe", ("mesh.data_parallel_shard=4", "data.microbatch_size=2"), splits),
                                      ("dense", ("mesh.pipeline_parallel=2", "data.microbatch_size=2"),
                                       {"num_hidden_layers": 4, "tie_word_embeddings": True})):
            with self.subTest(model):
                self.assert_exports_checkpoints(self.exporting(model, **of_model), *mesh)

    def test_transformers_loads_what_is_made_of_the_newest_checkpoint(self):
        job = self.exporting("dense")
        self.trained(job)
        made = job.folder / "made"
        self.convert(job.saves, made)
        models = [transformers.AutoModelForCausalLM.from_pretrained(folder).eval() for folder in (made, job.export)]
        ids = torch.arange(20).unsqueeze(0)
        with torch.no_grad():
            mine, exported = (model(ids).logits for model in models)
        self.assertTrue(torch.equal(mine, exported))
        self.assertEqual(models[0].config.to_dict() | {"_name_or_path": ""}, models[1].config.to_dict() | {"_name_or_path": ""})
        half = job.folder / "half"
        self.convert(job.saves / "save-4", half, "--dtype=bfloat16")
        self.assertEqual(json.loads((half / "config.json").read_text())["torch_dtype"], "bfloat16")

    def test_a_checkpoint_of_trained_parameters_alone_gives_what_it_has(self):
        job = self.exporting("dense")
        job.config["trainer"]["model_stage_factory"] = {"checkpoint_only_trainable_parameters": True}
        self.trained(job)  # all are trained, so the checkpoint has all
        self.convert(job.saves / "save-4", job.folder / "made", "--files", job.exports / "step-4")
        self.assertEqual(self.content(job.folder / "made"), self.content(job.exports / "step-4"))

    def test_a_checkpoint_of_a_model_of_ones_own_keeps_its_names(self):
        folder = self.job().folder
        exported, saves = folder / "exported", folder / "saves"
        result = subprocess.run(
            [program_job.PROGRAMS / "custom_model", "examples/custom_model/config.json", f"export_to={exported}",
             f"trainer.checkpointing.save_dir={saves}", "trainer.checkpointing.period_steps=last_step",
             "trainer.logging.tracker.path=" + str(folder / "metrics.jsonl"), "trainer.schedule.total_steps=3"],
            capture_output=True, text=True, timeout=program_job.SECONDS, cwd=program_job.REPOSITORY)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.convert(saves, folder / "made")
        self.assertEqual(self.content(folder / "made"), self.content(exported))
        self.assertIn("expected a model of a family of d9d", self.convert(saves, folder / "other", "--to=huggingface", code=1))


if __name__ == "__main__":
    main()
