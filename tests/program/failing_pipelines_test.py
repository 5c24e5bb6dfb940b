"""A rank of a pipeline that throws in a forward, in a backward or in the weights' half of a split backward, is stopped or is
killed ends the job in time, and is named. Each way with schedules, ranks and times that are drawn.

Environment: D9D_TEST_DEVICE (cpu, cuda); D9D_TEST_RANKS (2; 4 adds FSDP); D9D_FAILURES, how often each way (1);
D9D_FAILURES_AT_ONCE, jobs that run at the same time (1); D9D_FAILURES_SEED (0).
"""

import json
import os
import random
import re
import signal
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import program_job
from program_job import LAUNCH, ProgramTest, main

NUM_RANKS = int(os.environ.get("D9D_TEST_RANKS", "2"))
NUM_FAILURES = int(os.environ.get("D9D_FAILURES", "1"))
AT_ONCE = int(os.environ.get("D9D_FAILURES_AT_ONCE", "1"))
SEED = int(os.environ.get("D9D_FAILURES_SEED", "0"))
STEP_TIMEOUT = 3  # seconds
PROMISE = STEP_TIMEOUT + 5  # as documented: a second to ask for positions, the rest to end
PATIENCE = 120  # for a job to come to its tenth step on a machine that does other things
SCHEDULES = [{"schedule": "gpipe"}, {"schedule": "1f1b"}, {"schedule": "1f1b", "num_stages_per_rank": 2, "zero_bubble": True},
             {"schedule": "looped_bfs", "num_stages_per_rank": 2}, {"schedule": "zero_bubble_v"}, {"schedule": "dual_pipe_v"}]
SPLIT = [schedule for schedule in SCHEDULES if schedule.get("zero_bubble") or schedule["schedule"] in ("zero_bubble_v", "dual_pipe_v")]
THROWING = ("forward", "backward", "weights")
WAYS = (*THROWING, "stopped", "killed")


class Job:
    """One that fails: `lines` of its standard error, with the seconds since the fault."""

    def __init__(self, way, number):
        draw = random.Random(f"{SEED} {way} {number}")
        self.way, self.victim, self.schedule = way, draw.randrange(NUM_RANKS), draw.choice(SPLIT if way == "weights" else SCHEDULES)
        self.delay = draw.random() * 0.3  # seconds after the tenth step, until it is stopped or killed
        mesh = {"pipeline_parallel": 2} if NUM_RANKS == 2 else {"pipeline_parallel": 2, "data_parallel_shard": NUM_RANKS // 2}
        self.config = {
            "launch": LAUNCH | {"ranks": "processes"},
            "mesh": mesh,
            "trainer": {"run": {"name": "failing"}, "schedule": {"total_steps": 1000000},
                        "determinism": {"base_seed": 1}, "gradient_clipping": {"max_norm": 1.0},
                        "timeout": {"init_timeout": PATIENCE, "step_timeout": STEP_TIMEOUT},
                        "pipelining": {"schedule": self.schedule},
                        "logging": {"period_steps": 1, "tracker": {"provider": "null"}}, "gc": {"period_steps": "disable"},
                        "checkpointing": {"save_dir": "none", "period_steps": "disable"}},
            "fault": way if way in THROWING else "none",
            "rank": self.victim, "step": 12, "call": draw.randrange(2 if way == "weights" else 4)}  # dual_pipe_v splits two
        self.errors, self.exit_code, self.seconds = "", None, None

    def __str__(self):
        return f"{self.way}, rank {self.victim}, {json.dumps(self.schedule)}, {self.delay:.2f} s: exit code {self.exit_code}, " \
               f"{self.seconds} s\n{self.errors}"

    def run(self):
        with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
            path = Path(folder) / "job.json"
            path.write_text(json.dumps(self.config))
            process = subprocess.Popen([program_job.PROGRAMS / "loop_test", path], cwd=folder, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE, text=True, errors="replace",
                                       env={**os.environ, "D9D_TEST_PROGRAM": "failing_pipeline"})
            limit = threading.Timer(PATIENCE + PROMISE, process.kill)
            limit.start()
            try:
                self.watch(process)
            finally:
                limit.cancel()
                process.kill()
                process.wait()
                process.stderr.close()
        return self

    def watch(self, process):
        began = None
        for line in process.stderr:
            self.errors += line
            if began is None and self.config["fault"] == "none" and re.search(r"train +10/", line):
                threading.Event().wait(self.delay)
                children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                os.kill(int(children[self.victim]), signal.SIGSTOP if self.way == "stopped" else signal.SIGKILL)
                began = time.monotonic()
            if began is None and "the fault comes" in line:
                began = time.monotonic()
        self.exit_code = process.wait(PATIENCE)
        self.seconds = None if began is None else round(time.monotonic() - began, 2)


class FailingPipelines(ProgramTest):
    def assert_ends_and_is_named(self, job):
        self.assertIsNotNone(job.seconds, f"no fault: {job}")
        self.assertLess(job.seconds, PROMISE, job)
        error = next((line for line in job.errors.splitlines() if line.startswith("error: ")), "")
        if job.way == "killed":
            self.assertEqual(job.exit_code, 128 + signal.SIGKILL, job)
            self.assertRegex(error, rf"rank {job.victim} of {NUM_RANKS} .*signal 9", job)
        elif job.way == "stopped":
            self.assertEqual(job.exit_code, 1, job)
            self.assertRegex(error, rf"rank \d at .* for.*: rank {job.victim}\b|waited {STEP_TIMEOUT} s .*\brank {job.victim}\b", job)
        else:
            self.assertEqual(job.exit_code, 1, job)
            place = {"forward": "in model", "backward": "in backward of", "weights": "in backward of .*LateGradient"}[job.way]
            self.assertRegex(error, rf"rank {job.victim} breaks as asked \({place}.*, stage \d, microbatch \d of step 12, action \d", job)

    def test_each_way_ends_the_job_in_time_and_is_named(self):
        jobs = [Job(way, number) for number in range(NUM_FAILURES) for way in WAYS]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for job in pool.map(Job.run, jobs):
                print(f"{job.way} {job.victim} {job.schedule['schedule']} {job.seconds} s", flush=True)
                with self.subTest(str(job).splitlines()[0]):
                    try:
                        self.assert_ends_and_is_named(job)
                    except AssertionError:
                        print(job, flush=True)  # now: a limit of time may end the other jobs
                        raise


if __name__ == "__main__":
    main(ranks=NUM_RANKS)
