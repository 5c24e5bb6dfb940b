"""Whole runs of small models: bfloat16 and mixed precision learn as float32 does, deterministic runs repeat every bit."""

import hashlib
import os
import sys
import tempfile
from pathlib import Path

import program_job
from program_job import DEVICE, REPOSITORY, ProgramTest, main

sys.path.insert(0, str(REPOSITORY / "benchmarks/training_step"))
import loss_curves  # noqa: E402: found by the line above

STEPS = 200 if DEVICE == "cuda" else 40
REPEATED_STEPS = 20 if DEVICE == "cuda" else 5


class Learning(ProgramTest):
    def train(self, model, precision, steps, *overrides):
        """Lines of the log, digests of the exported files."""
        folder = Path(tempfile.mkdtemp(dir=os.environ.get("TMPDIR")))
        lines = loss_curves.train(model, precision, folder, device=DEVICE, steps=steps, programs=program_job.PROGRAMS,
                                  overrides=overrides)
        digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()
                   for path in sorted((folder / f"{precision}-export").iterdir())}
        self.assertEqual(len(lines), steps)
        return lines, digests

    def test_losses_in_bfloat16_and_mixed_precision_stay_in_the_band_around_those_in_float32(self):
        for model in ("dense", "moe"):
            reference, _ = self.train(model, "float32", STEPS)
            self.assertTrue(loss_curves.is_finite(reference))
            self.assertLess(reference[-1]["loss"], reference[0]["loss"] - 1)  # it learns
            for precision in ("bfloat16", "mixed"):
                with self.subTest(model=model, precision=precision):
                    steps, _ = self.train(model, precision, STEPS)
                    self.assertTrue(loss_curves.is_finite(steps))
                    band = loss_curves.tolerance(loss_curves.BANDS[model])
                    self.assertLessEqual(max(loss_curves.gaps(steps, reference)), band)

    def test_a_deterministic_run_repeats_every_bit(self):
        for model in ("dense", "moe"):
            for precision in ("float32", "bfloat16"):
                with self.subTest(model=model, precision=precision):
                    first, second = (self.train(model, precision, REPEATED_STEPS, "launch.deterministic=true")
                                     for _ in range(2))
                    for key in ("loss", "grad_norm"):
                        self.assertEqual([step[key] for step in first[0]], [step[key] for step in second[0]], key)
                    self.assertEqual(first[1], second[1], "exported weights")


if __name__ == "__main__":
    main()
