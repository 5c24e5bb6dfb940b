"""Tests benchmarks/training_step/waits.py on traces whose results are obvious."""

import itertools
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks/training_step"))
from waits import bubble_fraction, steps_of  # noqa: E402: found by the line above


class Trace:
    """Calls of the host in order, one in each microsecond; the device work that they launch begins 10 us later."""

    def __init__(self):
        self.events = []
        self.numbers = itertools.count(1)

    def call(self, name, work=None, kind="kernel"):
        number = next(self.numbers)
        self.events.append({"ph": "X", "cat": "cuda_runtime", "name": name, "ts": float(number), "dur": 2000.0,
                            "args": {"correlation": number}})
        if work:
            self.events.insert(0, {"ph": "X", "cat": kind, "name": work, "ts": number + 10.0, "dur": 1.0,
                                   "args": {"correlation": number, "stream": 7}})
        return self

    def kernel(self, name):
        return self.call("cudaLaunchKernel", name)

    def copy(self, kind):
        return self.call("cudaMemcpyAsync", f"Memcpy {kind}", "gpu_memcpy")

    def steps(self):
        return steps_of(self.events)


def step():
    return Trace().kernel("vectorized_gather_kernel").kernel("gemm")


class Waits(unittest.TestCase):
    def test_a_step_that_only_gives_work_has_none(self):
        trace = step().call("cudaEventRecord").call("cudaStreamWaitEvent").call("cudaMallocAsync").kernel("adamw")
        (only,) = trace.steps()
        self.assertEqual((only.waits.total(), only.copies_to_host, only.wait_ms), (0, 0, 0.0))

    def test_every_way_to_wait_counts(self):
        names = ["cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cuCtxSynchronize",
                 "cuStreamSynchronize", "cudaFree", "cudaMemcpy", "cudaMemcpy2D", "cuMemcpyDtoH_v2"]
        for name in names:
            with self.subTest(name):
                (only,) = step().call(name).kernel("adamw").steps()
                self.assertEqual((dict(only.waits), only.wait_ms), ({name: 1}, 2.0))

    def test_copies_that_do_not_wait_are_no_waits(self):
        (only,) = step().copy("HtoD (Pageable -> Device)").copy("DtoD (Device -> Device)").kernel("adamw").steps()
        self.assertEqual((only.waits.total(), only.copies_to_host), (0, 0))

    def test_copies_to_the_host_count_and_wait_where_memory_can_be_paged_out(self):
        (only,) = step().copy("DtoH (Device -> Pinned)").kernel("adamw").steps()
        self.assertEqual((only.waits.total(), only.copies_to_host), (0, 1))
        (only,) = step().copy("DtoH (Device -> Pageable)").kernel("adamw").steps()
        self.assertEqual((only.waits.total(), only.copies_to_host), (1, 1))

    def test_what_the_host_does_outside_of_steps_does_not_count(self):
        trace = Trace().call("cudaStreamSynchronize").kernel("fill").kernel("gather").kernel("adamw").kernel("adamw")
        trace.call("cudaStreamSynchronize").kernel("gather").call("cudaEventSynchronize").kernel("adamw").kernel("gather")
        trace.call("cudaDeviceSynchronize")  # of a step that the trace does not end
        self.assertEqual([found.waits.total() for found in trace.steps()], [0, 1])

    def test_microbatches_are_one_step(self):
        (only,) = step().kernel("gather").call("cudaStreamSynchronize").kernel("gather").kernel("adamw").steps()
        self.assertEqual(only.waits.total(), 1)

    def test_idle_is_what_nothing_fills(self):
        kernels = [{"cat": "kernel", "name": "gemm", "ts": start, "dur": 10.0, "args": {"stream": 7}} for start in (0.0, 30.0)]
        self.assertAlmostEqual(bubble_fraction(kernels), 0.5)


if __name__ == "__main__":
    unittest.main()
