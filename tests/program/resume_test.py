"""Jobs that are stopped or killed continue from their newest checkpoint, with the numbers of a job that ran through."""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

from program_job import DEVICE, MEASURED, SECONDS, ProgramTest, main, most_ranks

KILLS = int(os.environ.get("D9D_KILLS", "5"))
NUM_RANKS = 4 if DEVICE == "cpu" or most_ranks() > 3 else 2


class Resume(ProgramTest):
    def saving(self, model="dense", period=1, keep=2, steps=40):
        job = self.job(model)
        job.saves = job.folder / "checkpoints"
        job.config["trainer"]["checkpointing"] = {"save_dir": str(job.saves), "period_steps": period, "num_to_keep": keep}
        job.config["trainer"]["schedule"]["total_steps"] = steps
        job.config["launch"]["deterministic"] = True  # losses are compared bit for bit, on GPUs too
        return job

    def names(self, job):
        found = sorted(path.name for path in job.saves.iterdir()) if job.saves.exists() else []
        return [name for name in found if name not in (".lock", "config.json")]

    def newest(self, job):
        """Step of the newest complete checkpoint; 0: none."""
        return max((int(name[5:]) for name in self.names(job) if name[5:].isdigit() and
                    (job.saves / name / "manifest.json").exists()), default=0)

    def losses_by_step(self, job):
        return {line["step"]: line["loss"] for line in job.steps()}

    def evaluating(self, **options):
        """A job that also evaluates, keeps its best checkpoint and exports it. It is best midway: the other data are its own
        backwards."""
        job = self.saving(**options)
        text = (job.folder / "text.txt").read_bytes()
        (job.folder / "validation.txt").write_bytes(text[32 * 13 :: -1])
        job.config["evaluation_data"] = {"validation": job.config["data"] | {"paths": [str(job.folder / "validation.txt")]}}
        job.best = job.folder / "run/best"
        job.config["trainer"]["evaluation"] = {"validation": {
            "period_steps": 3, "at_start": True, "best": {"metric": "loss", "export_to": str(job.best)}}}
        return job

    def values_by_step(self, job):
        """All that the log says of each step but what measures the run; of steps that were trained twice, the second."""
        found = {}
        for line in job.steps():
            found.setdefault(line["step"], {}).update({key: line[key] for key in line if key not in MEASURED})
        return found

    def weights(self, folder):
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    def test_a_killed_job_always_continues_from_a_whole_checkpoint(self):
        steps = 4 * KILLS + 60
        whole = self.evaluating(steps=steps)
        self.assertEqual(whole.run().returncode, 0)
        expected = self.values_by_step(whole)
        self.assertEqual([step for step in expected if "validation/loss" in expected[step]],
                         [-1, *range(2, steps - 1, 3), *([steps - 1] if steps % 3 else [])])
        job, draw, newest, killed = self.evaluating(steps=steps), random.Random(0), 0, 0
        for kill in range(KILLS):
            process = job.start(stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            end = time.monotonic() + SECONDS
            goal = max(newest + 1, steps * kill // (KILLS + 2))  # before and after the best
            while self.newest(job) < goal and process.poll() is None and time.monotonic() < end:
                pass
            for _ in range(draw.randrange(3000)):  # a random moment of saving, evaluating or training
                os.stat(job.folder)
            killed += process.poll() is None
            process.kill()
            process.wait(SECONDS)
            self.assertGreaterEqual(self.newest(job), newest, self.names(job))
            newest = self.newest(job)
        result = job.run()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertGreaterEqual(killed, 0.8 * KILLS)
        best = min(range(2, steps, 3), key=lambda step: expected[step]["validation/loss"])
        self.assertLess(best, steps - 3)
        self.assertEqual(self.names(job), sorted(f"save-{step}" for step in (best + 1, steps - 1, steps)))
        self.assertEqual(self.values_by_step(job), expected)
        for trained, undisturbed in ((job.export, whole.export), (job.best, whole.best)):
            self.assertEqual(self.weights(trained), self.weights(undisturbed))

    def test_a_job_of_which_one_rank_is_killed_continues_from_a_whole_checkpoint(self):
        mesh = (f"mesh.data_parallel_shard={NUM_RANKS}", "launch.ranks=processes", "data.microbatch_size=2")
        steps = 2 * KILLS + 10
        whole = self.saving(steps=steps)
        self.assertEqual(whole.run(*mesh).returncode, 0)
        expected = self.losses_by_step(whole)
        job, draw, newest = self.saving(steps=steps), random.Random(1), 0
        for _ in range(max(2, KILLS // 3)):
            process = job.start(*mesh, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
            end = time.monotonic() + SECONDS
            before = self.names(job)
            while self.names(job) == before and process.poll() is None and time.monotonic() < end:
                pass  # until it has begun to save
            for _ in range(draw.randrange(3000)):
                os.stat(job.folder)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            ranks = [int(child) for child in children.read_text().split()] if children.exists() else []
            if ranks:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(draw.choice(ranks), signal.SIGKILL)
            errors = process.communicate(timeout=SECONDS)[1]
            self.assertTrue(process.returncode != 0 or self.newest(job) == steps, errors)
            self.assertGreaterEqual(self.newest(job), newest, errors)
            newest = self.newest(job)
        result = job.run(*mesh)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(sorted(self.names(job)), sorted([f"save-{steps - 1}", f"save-{steps}"]))
        self.assertEqual(self.losses_by_step(job), expected)

    def test_a_signal_in_any_phase_loses_no_finished_step(self):
        whole = self.evaluating(period=2, steps=8)
        whole.config["trainer"]["evaluation"]["validation"]["period_steps"] = 2
        self.assertEqual(whole.run().returncode, 0)
        phases = {"building": r".", "evaluating": r"evaluation 'validation' after step 2", "saving": r"saved step 2",
                  "exporting": r"train +8/8"}
        for phase, pattern in phases.items():
            with self.subTest(phase):
                job = self.evaluating(period=2, steps=8)
                job.config["trainer"]["evaluation"]["validation"]["period_steps"] = 2
                process = job.start(stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
                self.addCleanup(process.stderr.close)
                printed = ""
                for line in process.stderr:
                    printed += line
                    if re.search(pattern, line):
                        process.send_signal(signal.SIGTERM)
                        break
                printed += process.stderr.read()
                # 0: it was done before the signal came; the signal itself: where no step runs that could be finished
                self.assertIn(process.wait(SECONDS), (0, 128 + signal.SIGTERM, -signal.SIGTERM), printed)
                stopped = re.search(r"stopped after step (\d+) of 8", printed)
                if stopped:
                    self.assertEqual(self.newest(job), int(stopped[1]), printed)
                elif phase != "building":
                    self.assertEqual(self.newest(job), 8, printed)
                self.assertEqual(job.run().returncode, 0)
                self.assertEqual(self.values_by_step(job), self.values_by_step(whole))
                self.assertEqual(self.weights(job.export), self.weights(whole.export))

    def test_a_stopped_job_saves_and_continues_after_the_same_step(self):
        whole = self.saving("moe", period="last_step")
        self.assertEqual(whole.run().returncode, 0)
        job = self.saving("moe", period="last_step")
        process = job.start(stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        for line in process.stderr:
            if "train " in line:
                process.send_signal(signal.SIGTERM)
                break
        rest = process.stderr.read()
        self.assertEqual(process.wait(SECONDS), 128 + signal.SIGTERM, rest)
        process.stderr.close()
        self.assertEqual(len(self.names(job)), 1)
        self.assertFalse(job.export.exists())
        result = job.run()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("continues after step", result.stderr)
        self.assertEqual(self.losses_by_step(job), self.losses_by_step(whole))
        self.assertTrue(job.export.exists())

    def test_a_job_continues_on_other_ranks(self):
        for model in ("dense", "moe"):
            with self.subTest(model):
                job = self.saving(model, period=3, steps=6)
                job.config["model_provider"]["dtype"] = "bfloat16"
                job.config["trainer"]["model_stage_factory"] = {"master_dtype": "float32"}
                result = job.run("mesh.data_parallel_shard=2")
                self.assertEqual(result.returncode, 0, result.stderr)
                first = self.losses_by_step(job)
                shutil.rmtree(job.saves / "save-6")
                result = job.run()
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertIn("continues after step 3", result.stderr)
                again = self.losses_by_step(job)
                self.assertEqual({step: first[step] for step in range(3)}, {step: again[step] for step in range(3)})
                for step in range(3, 6):
                    self.assertAlmostEqual(again[step], first[step], delta=2e-2)

    def test_a_pipeline_continues_on_other_stages(self):
        self.assert_continues_on_other_stages(tie_word_embeddings=False)

    def test_a_pipeline_with_a_tied_head_continues_on_other_stages(self):
        self.assert_continues_on_other_stages(tie_word_embeddings=True)

    def assert_continues_on_other_stages(self, **of_model):
        job = self.saving(period=3, steps=6)
        model = job.config["model_provider"]["model"]
        model.update(num_hidden_layers=4, **of_model)
        job.config["data"]["microbatch_size"] = 2
        schedule = {"schedule": "1f1b", "num_stages_per_rank": 1, "zero_bubble": False}
        job.config["trainer"]["pipelining"] = {"schedule": schedule}
        result = job.run("mesh.pipeline_parallel=2", "launch.ranks=processes")
        self.assertEqual(result.returncode, 0, result.stderr)
        first = self.losses_by_step(job)
        exported = sorted(path.name for path in job.export.iterdir())
        for num_stages in [number for number in (NUM_RANKS, 1) if number != 2]:
            with self.subTest(num_stages):
                shutil.rmtree(job.saves / "save-6")
                result = job.run(f"mesh.pipeline_parallel={num_stages}")
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertIn("continues after step 3", result.stderr)
                self.assertNotIn("fsdp", result.stderr)  # its defaults depend on the stages, and nobody wrote them
                again = self.losses_by_step(job)
                for step in range(6):
                    self.assertAlmostEqual(again[step], first[step], delta=1e-4 * first[step])
                self.assertEqual(sorted(path.name for path in job.export.iterdir()), exported)

    def test_a_checkpoint_of_another_model_is_refused(self):
        job = self.saving(steps=2)
        self.assertEqual(job.run().returncode, 0)
        result = job.run("model_provider.model.layer.intermediate_size=64")
        self.assertEqual(result.returncode, 1)
        self.assertIn("[checkpoint] expected the tensors of this job", result.stderr)
        self.assertIn("gate_proj", result.stderr)

    def test_a_change_of_the_model_that_no_tensor_shows_is_told(self):
        job = self.saving(steps=2)
        self.assertEqual(job.run().returncode, 0)
        changed = {"trainer.schedule.total_steps": 3, "model_provider.model.rope_base": 500000, "data.num_workers": 2,
                   "optimizer.lr": 0.5, "trainer.run.name": "another"}
        result = job.run(*(f"{key}={value}" for key, value in changed.items()))
        self.assertEqual(result.returncode, 0, result.stderr)
        told = [line for line in result.stderr.splitlines() if "settings that are not those of" in line]
        self.assertEqual(len(told), 1, result.stderr)
        keys = ["data.num_workers", "model.model.rope_base", "optimizer.lr", "trainer.schedule.total_steps"]
        self.assertRegex(told[0], "save-2: " + "; ".join(rf"{key} \S+ -> \S+" for key in keys) + "$")
        self.assertIn("total_steps 2 -> 3", told[0])

    def annealing(self, job):
        """The job on a mixture with other data, in another view, for 6 further steps."""
        (job.folder / "books.txt").write_text("".join(f"{i} books\n" for i in range(300)))
        text = {key: job.config["data"].pop(key) for key in ("kind", "paths", "sequence_length")}
        packed = text | {"view": {"kind": "packed", "long_documents": "split"}}
        job.config["data"] |= {"kind": "mixture", "sources": [
            {"weight": 1, "source": packed}, {"weight": 3, "source": packed | {"paths": [str(job.folder / "books.txt")]}}]}
        job.config["trainer"]["schedule"]["total_steps"] = 14

    def test_a_job_goes_on_with_other_data_as_if_it_had_not_been_killed(self):
        job = self.saving(steps=8, keep=None)
        self.assertEqual(job.run().returncode, 0)
        before = self.losses_by_step(job)
        self.annealing(job)
        refused = job.run()
        self.assert_one_error(refused, "expected the data", "give trainer.data_phase a new name")
        job.config["trainer"]["data_phase"] = "annealing"
        begun = job.folder / "begun"
        shutil.copytree(job.saves, begun)
        result = job.run()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("trainer.data_phase 'annealing' begins after step 8", result.stderr)
        expected, weights = self.values_by_step(job), self.weights(job.export)
        self.assertEqual({step: expected[step]["loss"] for step in range(8)}, before)
        self.assertEqual(sorted(expected), list(range(14)))
        shutil.rmtree(job.saves)
        shutil.rmtree(job.export)
        begun.rename(job.saves)
        for goal in (9, 12):
            process = job.start(stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            end = time.monotonic() + SECONDS
            while self.newest(job) < goal and process.poll() is None and time.monotonic() < end:
                pass
            process.kill()
            process.wait(SECONDS)
            self.assertGreaterEqual(self.newest(job), goal)
        result = job.run()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotIn("begins after step", result.stderr)
        self.assertEqual(self.values_by_step(job), expected)
        self.assertEqual(self.weights(job.export), weights)

    def test_checkpoints_within_the_target_of_the_export_are_refused_before_a_step(self):
        job = self.saving(steps=2)
        job.config["trainer"]["checkpointing"]["save_dir"] = str(job.export / "checkpoints")
        result = job.run()
        self.assert_one_error(result, job.export, "folder of its own for the export")
        self.assertFalse(job.metrics.exists() and job.metrics.read_text(), "a step was logged")

    def test_a_manifest_that_is_no_manifest_is_named(self):
        job = self.saving(steps=2)
        self.assertEqual(job.run().returncode, 0)
        manifest = job.saves / "save-2/manifest.json"
        manifest.write_text(json.dumps({"format": 7}))
        result = job.run()
        self.assert_one_error(result, manifest, "format")


if __name__ == "__main__":
    main(ranks=2)
