"""Ranks of two machines under torchrun: two network namespaces act as the machines. Needs root and iproute2.

Usage: two_hosts_test.py CORE_TEST    the test binary; its program `rank` connects to the other ranks
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

CORE_TEST = sys.argv.pop(1)
TORCHRUN = pathlib.Path(__file__).parents[2] / ".venv/bin/torchrun"
NUM_RANKS = 4


def ip(*arguments: str) -> bool:
    return subprocess.run(["ip", *arguments], capture_output=True).returncode == 0


class TwoHosts(unittest.TestCase):
    def setUp(self) -> None:
        self.hosts = [f"d9d{os.getpid()}{end}" for end in "ab"]
        ends = [f"v{os.getpid()}{end}" for end in "ab"]
        steps = [["netns", "add", host] for host in self.hosts]
        steps.append(["link", "add", ends[0], "netns", self.hosts[0], "type", "veth",
                      "peer", "name", ends[1], "netns", self.hosts[1]])
        for number, (host, end) in enumerate(zip(self.hosts, ends), start=1):
            steps += [["-n", host, "addr", "add", f"10.77.0.{number}/24", "dev", end],
                      ["-n", host, "link", "set", end, "up"], ["-n", host, "link", "set", "lo", "up"]]
        for host in self.hosts:
            self.addCleanup(lambda host=host: shutil.which("ip") and ip("netns", "del", host))
        for step in steps:
            if shutil.which("ip") is None or not ip(*step):
                self.skipTest(f"no network namespaces here: ip {' '.join(step)} fails")
        self.logs = [tempfile.TemporaryFile("w+") for _ in self.hosts]
        for log in self.logs:
            self.addCleanup(log.close)

    def start(self, plan: str) -> list[subprocess.Popen]:
        variables = {**os.environ, "D9D_TEST_PROGRAM": "rank", "D9D_TEST_PLAN": plan, "OMP_NUM_THREADS": "1"}
        agents = []
        for number, (host, log) in enumerate(zip(self.hosts, self.logs)):
            agents.append(subprocess.Popen(
                ["ip", "netns", "exec", host, TORCHRUN, "--no-python", "--nnodes", "2", "--node-rank", str(number),
                 "--nproc-per-node", str(NUM_RANKS // 2), "--master-addr", "10.77.0.1", "--master-port", "29500",
                 CORE_TEST], stdout=log, stderr=subprocess.STDOUT, env=variables))
            self.addCleanup(agents[-1].kill)
        return agents

    def text(self) -> str:
        for log in self.logs:
            log.seek(0)
        return "".join(log.read() for log in self.logs)

    def rank_process(self, rank: int) -> int:
        host = self.hosts[rank * 2 // NUM_RANKS]
        for process in subprocess.run(["ip", "netns", "pids", host], capture_output=True, text=True).stdout.split():
            try:
                variables = pathlib.Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"RANK={rank}".encode() in variables:
                return int(process)
        self.fail(f"rank {rank} does not run")

    def test_ranks_meet_and_part(self) -> None:
        for agent in self.start(""):
            self.assertEqual(agent.wait(timeout=60), 0, self.text())

    def test_of_a_rank_that_is_killed_the_other_machine_hears_by_name(self) -> None:
        agents = self.start("hang")
        deadline = time.monotonic() + 60
        while self.text().count("waiting") < NUM_RANKS:
            self.assertLess(time.monotonic(), deadline, self.text())
            time.sleep(0.1)  # time between two reads of the log
        os.kill(self.rank_process(3), signal.SIGKILL)
        for agent in agents:
            self.assertNotEqual(agent.wait(timeout=40), 0)  # an operation may take 50 s
        self.assertRegex(self.text(), r"error: \[core::communicator\] rank [01] .*no answer from .*rank 3")


NOT_RUN = 77  # the exit code that ctest treats as skipped


if __name__ == "__main__":
    result = unittest.main(verbosity=2, exit=False).result
    sys.exit(1 if not result.wasSuccessful() else NOT_RUN if result.skipped else 0)
