"""examples/colocated_rl on CPUs: it refuses what cannot be, and continues from its checkpoints on other ranks."""

import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import program_job
from program_job import REPOSITORY, SECONDS, ProgramTest, main

REWARDS = re.compile(r"round (\d+): mean reward (\S+)")


class ColocatedRl(ProgramTest):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def run_example(self, *arguments, name="run"):
        return subprocess.run(
            [program_job.PROGRAMS / "colocated_rl", "examples/colocated_rl/config.json", "launch.device=cpu", "launch.num_threads=1",
             "trainer.schedule.total_steps=6", "rollouts.num_rollouts=6", "rollouts.num_steps=2",
             f"rollouts.weights={self.folder / name / 'policy'}", f"trainer.checkpointing.save_dir={self.folder / name / 'saves'}",
             *arguments], capture_output=True, text=True, timeout=SECONDS, cwd=REPOSITORY)

    def rewards(self, *arguments, **options):
        result = self.run_example(*arguments, **options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return REWARDS.findall(result.stderr)

    def saved(self, name, step):
        """The completions that a checkpoint has, with their log-probabilities and advantages."""
        manifest = json.loads((self.folder / name / "saves" / f"save-{step}" / "manifest.json").read_text())
        return manifest["values"]["data"]

    def test_values_that_are_wrong_together_are_refused(self):
        for key, value, *found in (("rollouts.clip", 0, "clip"), ("rollouts.prompt", "", "at least one byte"),
                                   ("rollouts.num_tokens", 1017, "at most 1024", "got 1025"),
                                   ("trainer.data_prefetch.prefetch_factor", 1, "an earlier policy")):
            with self.subTest(key):
                self.assert_one_error(self.run_example(f"{key}={value}"), key, *found)

    def test_ranks_continue_from_their_checkpoint(self):
        saves = "trainer.checkpointing.period_steps=3"
        for mesh in ((), ("mesh.data_parallel_replicate=2",), ("mesh.pipeline_parallel=2",)):
            with self.subTest(mesh):
                whole, name = "-".join(("whole", *mesh)), "-".join(("parts", *mesh))
                expected = self.rewards(saves, *mesh, name=whole)
                self.assertEqual([number for number, _ in expected], ["0", "1", "2", "3"])
                begun = self.rewards(saves, "trainer.schedule.total_steps=3", *mesh, name=name)
                continued = self.rewards(saves, *mesh, name=name)
                self.assertEqual(begun + continued, expected)
                self.assertEqual(self.saved(name, 6), self.saved(whole, 6))

    def test_two_ranks_train_on_the_completions_of_both(self):
        save = "trainer.checkpointing.period_steps=last_step"
        self.rewards(save, "trainer.schedule.total_steps=1", "mesh.data_parallel_replicate=2")
        saved = self.saved("run", 1)
        self.assertEqual(len(json.loads(saved) if isinstance(saved, str) else saved), 12)
        self.rewards(save)  # continues on one rank

    def test_layouts_train_as_one_rank(self):
        """In the first step of a round the policy gives each byte the probability with which the engine drew it, and the round's
        further steps move away from it; completions and losses are those of one rank."""
        expected = None
        for mesh in ((), ("mesh.pipeline_parallel=2",), ("mesh.tensor_parallel=2",), ("mesh.data_parallel_shard=2", "rollouts.num_rollouts=3"),
                     ("mesh.context_parallel_shard=2",), ("mesh.context_parallel_shard=4",), ("mesh.tensor_parallel=3",)):
            with self.subTest(mesh):
                name = "-".join(("layout", *mesh))
                log = self.folder / name / "metrics.jsonl"
                # 8 bytes of prompt and 9 of completion: 16 positions, which three ranks do not divide; the first four have no label
                tracker = json.dumps({"provider": "jsonl", "path": str(log)})
                rewards = self.rewards(f"trainer.logging.tracker={tracker}", "rollouts.num_tokens=9", *mesh, name=name)
                rows = [json.loads(line) for line in log.read_text().splitlines()]
                series = {name: [row[name] for row in rows] for name in ("ratio", "loss")}
                for first in (0, 2, 4):
                    self.assertAlmostEqual(series["ratio"][first], 1, delta=1e-5)
                    self.assertGreater(abs(series["ratio"][first + 1] - 1), 1e-5)
                expected = expected or (rewards, series)
                self.assertEqual(rewards, expected[0])
                for name, values in series.items():
                    for value, of_one in zip(values, expected[1][name], strict=True):
                        self.assertAlmostEqual(value, of_one, delta=1e-4)


if __name__ == "__main__":
    main()
