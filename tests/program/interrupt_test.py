"""Ctrl-C and SIGTERM in a pretraining example."""

import re
import signal
import subprocess

from program_job import SECONDS, ProgramTest, main


class Interrupt(ProgramTest):
    """Each test waits for a line of the program before it sends a signal."""

    def started(self, *arguments):
        job = self.job()
        process = job.start("trainer.schedule.total_steps=1000000", *arguments, stderr=subprocess.PIPE,
                            stdout=subprocess.DEVNULL, text=True)
        self.addCleanup(process.wait)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)
        return job, process

    def wait_for(self, process, pattern):
        printed = ""
        for line in process.stderr:
            printed += line
            if re.search(pattern, line):
                return
        self.fail(f"the program ended with {process.wait(SECONDS)} before it printed {pattern}; what it printed:\n{printed}")

    def test_a_signal_ends_the_run_after_the_running_step(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number.name):
                job, process = self.started()
                self.wait_for(process, r"train +10/")
                process.send_signal(number)
                rest = process.stderr.read()
                self.assertEqual(process.wait(SECONDS), 128 + number, rest)
                stopped = re.search(r"stopped after step (\d+) of 1000000", rest)
                self.assertTrue(stopped, rest)
                self.assertTrue(job.metrics.read_text().endswith("}\n"))
                self.assertEqual([step["step"] for step in job.steps()], list(range(int(stopped[1]))))
                self.assert_nothing_half_written(job)

    def test_a_second_signal_ends_the_program_at_once(self):
        # Steps take a second, and both signals are pending when the program continues: the step cannot end between
        # them.
        job, process = self.started("data.global_batch_size=4000", "data.sequence_length=2", "data.num_workers=0")
        self.wait_for(process, r"train +1/")
        for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
            process.send_signal(number)
        rest = process.stderr.read()
        self.assertIn(process.wait(SECONDS), (-signal.SIGINT, -signal.SIGTERM), rest)
        self.assertEqual(rest.count("stopping after this step"), 1, rest)
        self.assertNotIn("stopped after step", rest)
        self.assert_nothing_half_written(job)


if __name__ == "__main__":
    main()
