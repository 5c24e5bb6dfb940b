"""custom_model over data-parallel ranks: they divide the samples of a step, and must train as one rank does."""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import program_job
from program_job import REPOSITORY, SECONDS, ProgramTest, main
from safetensors.torch import load_file

CONFIG = "examples/custom_model/config.json"
TOLERANCE = 1e-4  # "fp32 training loss" of tests/support/tolerances.h: gradients are summed in another order


class CustomModel(ProgramTest):
    def run_example(self, *arguments):
        metrics = Path(tempfile.mkdtemp()) / "metrics.jsonl"
        tracker = json.dumps({"provider": "jsonl", "path": str(metrics)})
        result = subprocess.run(
            [str(program_job.PROGRAMS / "custom_model"), CONFIG, f"trainer.logging.tracker={tracker}",
             "trainer.schedule.total_steps=6", "launch.num_threads=1", "launch.device=cpu", *arguments],
            capture_output=True, text=True, timeout=SECONDS, cwd=REPOSITORY)
        return result, metrics

    def steps(self, *arguments):
        result, metrics = self.run_example(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.count("accuracy on unseen text"), 1)
        return [json.loads(line) for line in metrics.read_text().splitlines()]

    def test_two_ranks_train_as_one(self):
        """With the same number of samples in total: ranks that read the same half, or all of it, would differ."""
        alone = self.steps()
        for key in ("data_parallel_replicate", "data_parallel_shard"):
            with self.subTest(key):
                together = self.steps(f"mesh.{key}=2")
                self.assertEqual(len(together), 6)
                for ours, expected in zip(together, alone, strict=True):
                    self.assertEqual(ours["num_tokens"], expected["num_tokens"])
                    self.assertLessEqual(abs(ours["loss"] - expected["loss"]), TOLERANCE * expected["loss"])

    def test_a_job_continues_from_its_checkpoint_and_exports_what_it_would_have(self):
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        arguments = [f"trainer.checkpointing.save_dir={folder / 'saves'}", "trainer.checkpointing.period_steps=3"]
        self.steps(*arguments, f"export_to={folder / 'whole'}")
        expected = load_file(folder / "whole" / "model.safetensors")
        self.assertEqual(set(expected), {"embedding", "convolution.weight", "convolution.bias", "classifier.weight"})
        for mesh in ([], ["mesh.data_parallel_shard=2"]):
            with self.subTest(mesh):
                shutil.rmtree(folder / "saves" / "save-6")
                rest = self.steps(*arguments, *mesh, f"export_to={folder / 'rest'}")
                self.assertEqual([step["step"] for step in rest], [3, 4, 5])
                for name, tensor in load_file(folder / "rest" / "model.safetensors").items():
                    difference = (tensor - expected[name]).abs().max()
                    self.assertLessEqual(difference, TOLERANCE * expected[name].abs().max() if mesh else 0, name)

    def test_its_own_tracker_is_chosen_in_the_file(self):
        losses = [step["loss"] for step in self.steps()]
        path = Path(tempfile.mkdtemp()) / "metrics.csv"
        chosen = json.dumps({"provider": "custom", "name": "csv", "options": {"path": str(path)}})
        result, _ = self.run_example(f"trainer.logging.tracker={chosen}")
        self.assertEqual(result.returncode, 0, result.stderr)
        rows = [line.split(",") for line in path.read_text().splitlines()]
        written = [float(value) for _, name, value in rows if name == "train/loss"]
        self.assertEqual(len(written), len(losses))
        for ours, expected in zip(written, losses, strict=True):
            self.assertAlmostEqual(ours, expected, delta=1e-5 * expected)  # printed with six digits

        for changed, words in ({"name": "cvs"}, ("'csv'", "'cvs'")), ({"options": {"pth": "a"}}, ("options.pth",)):
            chosen = json.dumps({"provider": "custom", "name": "csv", "options": {"path": "a"}, **changed})
            refused, _ = self.run_example(f"trainer.logging.tracker={chosen}")
            self.assert_one_error(refused, *words)

    def test_ranks_that_do_not_divide_a_step_are_refused(self):
        result, _ = self.run_example("mesh.data_parallel_replicate=3")
        self.assert_one_error(result, "global_batch_size")


if __name__ == "__main__":
    main()
