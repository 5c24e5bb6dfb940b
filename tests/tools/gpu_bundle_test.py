"""Tests tools/run_gpu_tests with programs that pass, fail, crash, hang, and leave a GPU in error, and the list of
tools/gpu_bundle."""

import importlib.machinery
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree as xml
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / "tools"

# Prints as Google Test does. A case's behaviour follows from its name; each process records which cases it was given.
PROGRAM = """#!{python}
import os, sys, time
cases = next(word for word in sys.argv if word.startswith("--gtest_filter=")).split("=", 1)[1].split(":")
with open("{folder}/processes", "a") as log:
    log.write(" ".join(case.split(".")[1] for case in cases) + "\\n")
if any("starts" in case for case in cases):
    sys.exit("no such library")
failed = 0
for case in cases:
    print("[ RUN      ]", case, flush=True)
    if "hangs" in case:
        time.sleep(60)
    if "crashes" in case:
        os.kill(os.getpid(), 11)
    if "skips" in case:
        print("file.cpp:1: Skipped\\nneeds 40 GiB\\n")
    if "errs" in case:
        print("CUDA error: an illegal memory access was encountered")
    if "fails" in case:
        print("file.cpp:1: Failure\\nexpected 1, got 2")
    verdict = "[  SKIPPED ]" if "skips" in case else "[  FAILED  ]" if "fails" in case or "errs" in case else "[       OK ]"
    failed += verdict == "[  FAILED  ]"
    where = ", where GetParam() = 3" if "[  FAILED  ]" == verdict and "/" in case else ""
    print(f"{{verdict}} {{case}}{{where}} (1 ms)", flush=True)
sys.exit(7 if any("teardown" in case for case in cases) else failed > 0)
"""
SCRIPT = "import os, sys\nprint('expected 2 GPUs, got 1')\nsys.exit(int(os.environ['D9D_CODE']))\n"


class RunGpuTests(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        shutil.copy(TOOLS / "run_gpu_tests", self.folder)
        (self.folder / "bin").mkdir()
        program = self.folder / "bin/fake_test"
        program.write_text(PROGRAM.format(python=sys.executable, folder=self.folder))
        program.chmod(0o755)
        (self.folder / "script.py").write_text(SCRIPT)

    def run_bundle(self, *cases, scripts=(), arguments=("gpu1",)):
        """Returns verdicts by name, the output, and the cases of each process."""
        tests = [{"name": f"area.{case}", "label": "gpu1", "timeout": 1, "environment": {}, "program": "fake_test",
                  "case": case} for case in cases]
        tests += [{"name": f"script{code}", "label": "gpuN", "timeout": 5, "environment": {"D9D_CODE": str(code)},
                   "script": "script.py"} for code in scripts]
        (self.folder / "manifest.json").write_text(json.dumps({"commit": "abc", "tests": tests}))
        self.result = subprocess.run(
            [sys.executable, self.folder / "run_gpu_tests", *arguments, "--site-packages", self.folder, "--log",
             self.folder / "log"], capture_output=True, text=True, timeout=50)
        report = xml.parse(self.folder / "log/junit.xml").getroot()
        verdicts = {case.get("name"): "passed" if len(case) == 0 else case[0].get("message") for case in report}
        started = self.folder / "processes"
        return verdicts, started.read_text().splitlines() if started.exists() else []

    def test_a_suite_is_one_process(self):
        verdicts, processes = self.run_bundle("A.one", "A.two", "P/A.three/0", "B.four")
        self.assertEqual(self.result.returncode, 0, self.result.stdout + self.result.stderr)
        self.assertEqual(set(verdicts.values()), {"passed"})
        self.assertEqual(processes, ["one two", "three/0", "four"])
        self.assertIn("100% tests passed, 0 tests failed out of 4", self.result.stdout)

    def test_a_failure_fails_the_run_and_no_other_test(self):
        verdicts, processes = self.run_bundle("P/A.fails/0", "P/A.passes/0")
        self.assertEqual(self.result.returncode, 1)
        self.assertEqual(verdicts, {"area.P/A.fails/0": "Failed", "area.P/A.passes/0": "passed"})
        self.assertEqual(len(processes), 1)
        self.assertIn("expected 1, got 2", self.result.stdout)
        self.assertIn("50% tests passed, 1 tests failed out of 2", self.result.stdout)

    def test_after_a_crash_a_hang_or_an_error_of_the_GPU_the_rest_runs_in_a_new_process(self):
        verdicts, processes = self.run_bundle("A.crashes", "A.hangs", "A.errs", "A.passes")
        self.assertEqual(list(verdicts.values()), ["Crashed", "Timeout", "Failed", "passed"])
        self.assertEqual(processes, ["crashes hangs errs passes", "hangs errs passes", "errs passes", "passes"])

    def test_a_program_that_does_not_start_fails_all_its_tests_once(self):
        verdicts, processes = self.run_bundle("A.starts", "A.too", "B.other")
        self.assertEqual(list(verdicts.values()), ["Crashed", "Crashed", "passed"])
        self.assertEqual(processes, ["starts too", "other"])
        self.assertIn("no such library", self.result.stdout)

    def test_a_program_that_crashes_at_its_end_is_a_failure(self):
        verdicts, _ = self.run_bundle("A.passes", "A.teardown")
        self.assertEqual(verdicts, {"area.A.passes": "passed", "area.A.teardown": "passed",
                                    "area.A.teardown and the end of its program": "Crashed"})
        self.assertEqual(self.result.returncode, 1)

    def test_skipped_tests_are_listed_with_their_reason_and_are_not_enough(self):
        verdicts, _ = self.run_bundle("A.skips", "A.passes")
        self.assertEqual((verdicts["area.A.skips"], self.result.returncode), ("needs 40 GiB", 0))
        self.run_bundle("A.skips")
        self.assertEqual(self.result.returncode, 1)
        self.assertIn("no test ran", self.result.stdout)

    def test_scripts_pass_fail_and_skip_by_exit_code(self):
        verdicts, _ = self.run_bundle(scripts=[0, 1, 77], arguments=("gpuN",))
        self.assertEqual(list(verdicts.values()), ["passed", "Failed", "expected 2 GPUs, got 1"])

    def test_what_a_sanitizer_finds_fails_the_run_and_huge_tests_are_left_out(self):
        sanitizer = self.folder / "compute-sanitizer"
        sanitizer.write_text('#!/bin/sh\nshift 6\n"$@"\necho "========= ERROR SUMMARY: $FOUND errors"\n'
                             'test $FOUND = 0 || exit 99\n')
        sanitizer.chmod(0o755)
        os.environ["PATH"] = f"{self.folder}:{os.environ['PATH']}"
        for found, exit_code in ((0, 0), (2, 1)):
            os.environ["FOUND"] = str(found)
            verdicts, _ = self.run_bundle("A.passes", "A.Moves_more_than_2_31", arguments=("gpu1", "--sanitizer", "memcheck"))
            self.assertEqual(self.result.returncode, exit_code, self.result.stdout + self.result.stderr)
            self.assertEqual(verdicts["area.A.passes"], "passed")
            self.assertEqual(len(verdicts), 1 + (found > 0))

    def programs_that_run(self):
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue  # it has ended
            if str(self.folder / "bin") in command:
                found.append(command)
        return found

    def test_no_test_outlives_a_runner_that_is_told_to_end(self):
        tests = [{"name": "area.A.hangs", "label": "gpu1", "timeout": 40, "environment": {}, "program": "fake_test",
                  "case": "A.hangs"}]
        (self.folder / "manifest.json").write_text(json.dumps({"commit": "abc", "tests": tests}))
        runner = subprocess.Popen([sys.executable, self.folder / "run_gpu_tests", "--site-packages", self.folder, "--log",
                                   self.folder / "log"], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while not (self.folder / "processes").exists() and time.monotonic() < deadline:
            os.sched_yield()
        runner.terminate()
        self.assertEqual(runner.wait(timeout=20), 128 + signal.SIGTERM)
        self.assertEqual(self.programs_that_run(), [])

    def test_labels_and_names_choose(self):
        verdicts, _ = self.run_bundle("A.one", "A.two", scripts=[0], arguments=("all", "--only", "one|script"))
        self.assertEqual(list(verdicts), ["area.A.one", "script0"])
        verdicts, _ = self.run_bundle("A.one", "A.two", scripts=[0], arguments=("gpu1", "--exclude", "one"))
        self.assertEqual(list(verdicts), ["area.A.two"])


def load_bundle():
    loader = importlib.machinery.SourceFileLoader("gpu_bundle", str(TOOLS / "gpu_bundle"))
    bundle = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_bundle", loader))
    loader.exec_module(bundle)
    return bundle


class Archive(unittest.TestCase):
    def test_what_programs_share_is_stored_once_and_tarfile_unpacks_it(self):
        bundle, shared = load_bundle(), os.urandom(5 << 20)  # preset 3 reaches over 4 MiB
        with tempfile.TemporaryDirectory() as name:
            source = Path(name) / "source"
            source.mkdir()
            for index in range(2):
                (source / f"program_{index}").write_bytes(shared + bytes([index]))
            bundle.pack(source, Path(name) / "packed.tar.xz", dictionary=16 << 20)
            self.assertLess((Path(name) / "packed.tar.xz").stat().st_size, 1.1 * len(shared))
            subprocess.run([sys.executable, "-m", "tarfile", "-e", f"{name}/packed.tar.xz", f"{name}/there"], check=True)
            self.assertEqual((Path(name) / "there/source/program_1").read_bytes(), shared + b"\1")

    def test_the_dictionary_reaches_over_all_files_where_memory_allows(self):
        bundle, gibi = load_bundle(), 1 << 30
        self.assertEqual(bundle.dictionary_for(600 << 20, 64 * gibi), 600 << 20)
        self.assertEqual(bundle.dictionary_for(3 * gibi, 64 * gibi), gibi)
        for available in (12 * gibi, 4 * gibi, gibi):
            dictionary = bundle.dictionary_for(3 * gibi, available)
            self.assertLessEqual(bundle.BYTES_FOR_A_BYTE_OF_DICTIONARY * dictionary, available)
            self.assertGreater(bundle.BYTES_FOR_A_BYTE_OF_DICTIONARY * dictionary, available // 4)


class Manifest(unittest.TestCase):
    def test_lists_the_tests_of_GPUs_as_ctest_knows_them(self):
        bundle = load_bundle()

        def test(name, command, **properties):
            return {"name": name, "command": command,
                    "properties": [{"name": key, "value": value} for key, value in properties.items()]}

        listing = {"tests": [
            test("a.B.c", ["/build/bin/a_test", "--gtest_filter=B.c"], LABELS=["unit"]),
            test("a.BCuda.c", ["/build/bin/a_test", "--gtest_filter=BCuda.c"], LABELS=["gpu1"], TIMEOUT=9.0,
                 ENVIRONMENT=["TEST_TMPDIR=/build/tmp/"]),
            test("examples.e_cuda", ["/build/bin/e"], LABELS=["gpu1"], TIMEOUT=9.0, SKIP_REGULAR_EXPRESSION=["on cpu"]),
            test("program.x", ["python", str(TOOLS.parent / "tests/program/x_test.py"), "/build/bin"], LABELS=["gpuN"],
                 ENVIRONMENT=["D9D_TEST_DEVICE=cuda"]),
        ]}
        self.assertEqual(bundle.manifest_of(listing)["tests"], [
            {"name": "a.BCuda.c", "label": "gpu1", "timeout": 9.0, "environment": {}, "program": "a_test", "case": "BCuda.c"},
            {"name": "examples.e_cuda", "label": "gpu1", "timeout": 9.0, "environment": {}, "program": "e", "skips": ["on cpu"]},
            {"name": "program.x", "label": "gpuN", "timeout": 120, "environment": {"D9D_TEST_DEVICE": "cuda"},
             "script": "tests/program/x_test.py"},
        ])


if __name__ == "__main__":
    unittest.main()
