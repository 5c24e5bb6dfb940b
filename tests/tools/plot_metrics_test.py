"""What tools/plot_metrics draws, and what it says of files that it cannot draw."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools/plot_metrics"
LINES = '{"step": 0, "loss": 2.0, "counts": {"bins": [1]}}\n{"step": 1, "loss": 1.5}\n'


class PlotMetrics(unittest.TestCase):
    def run_tool(self, text, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            metrics, picture = Path(folder) / "metrics.jsonl", Path(folder) / "picture.svg"
            if text is not None:
                metrics.write_text(text)
            result = subprocess.run([sys.executable, TOOL, metrics, picture, *arguments], capture_output=True, text=True)
            self.assertNotIn("Traceback", result.stderr)
            return result, picture.read_text() if picture.exists() else ""

    def test_a_series_is_drawn(self):
        result, picture = self.run_tool(LINES)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("<svg", picture)

    def test_a_last_line_that_a_killed_job_left_is_left_out(self):
        result, picture = self.run_tool(LINES + '{"step": 2, "lo')
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("<svg", picture)

    def test_what_cannot_be_drawn_is_told_in_a_line(self):
        for text, arguments, told in ((None, [], "expected to read"), ("no JSON\n" + LINES, [], "in line 1 of"),
                                      (LINES, ["counts"], "It has loss"), (LINES, ["los"], "It has loss"), ("", [], "no series")):
            with self.subTest(told=told, arguments=arguments):
                result, picture = self.run_tool(text, *arguments)
                self.assertNotEqual(result.returncode, 0)
                self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
                self.assertIn(told, result.stderr)
                self.assertEqual(picture, "")

    def test_help_is_no_error(self):
        result = subprocess.run([sys.executable, TOOL, "--help"], capture_output=True, text=True)
        self.assertEqual(result.returncode, 0)
        self.assertIn("METRICS.jsonl", result.stdout)


if __name__ == "__main__":
    unittest.main()
