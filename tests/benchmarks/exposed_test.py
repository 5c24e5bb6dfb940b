"""Tests the arithmetic of benchmarks/communication/exposed.py on traces whose results are obvious."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks/communication"))
from exposed import exposure_of, union  # noqa: E402: found by the line above

MAIN, GATHERS, REDUCTIONS = 7, 20, 24


def event(kind, name, stream, start, end):
    """Times in ms."""
    return {"ph": "X", "cat": kind, "name": name, "ts": 1e3 * start, "dur": 1e3 * (end - start), "args": {"stream": stream}}


def kernel(start, end, stream=MAIN, name="gemm"):
    return event("kernel", name, stream, start, end)


def nccl(start, end, stream=GATHERS):
    return kernel(start, end, stream, "ncclDevKernel_AllGather_RING_LL(...)")


def copy(start, end, stream=GATHERS, name="Memcpy PtoP (Device -> Device)"):
    return event("gpu_memcpy", name, stream, start, end)


class Exposed(unittest.TestCase):
    def assert_exposure(self, events, **expected):
        actual = exposure_of(events)._asdict()
        for name, value in expected.items():
            self.assertAlmostEqual(actual[name], value, msg=name)

    def test_what_overlaps_or_touches_is_one_interval(self):
        self.assertEqual(union([(5, 6), (0, 2), (1, 3), (3, 4), (5.5, 5.7)]), [(0, 4), (5, 6)])

    def test_two_streams_may_compute(self):
        beside = [kernel(0, 10), nccl(1, 3), kernel(4, 9, stream=REDUCTIONS), nccl(9, 12)]
        self.assert_exposure(beside, span=12, compute=10, communication=5, exposed=2)

    def test_hidden_communication_is_not_exposed(self):
        self.assert_exposure([kernel(0, 10), nccl(2, 5)], span=10, compute=10, communication=3, exposed=0, idle=0)

    def test_only_the_time_without_compute_counts_and_once(self):
        events = [kernel(0, 4), nccl(3, 6), nccl(5, 7, REDUCTIONS), kernel(8, 10)]
        self.assert_exposure(events, span=10, compute=6, communication=4, exposed=3, idle=1)
        self.assertAlmostEqual(exposure_of(events).share(), 0.3)

    def test_some_kernels_of_nccl_are_looked_at_alone(self):
        reduction = kernel(3, 7, REDUCTIONS, "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(...)")
        events = [kernel(0, 4), nccl(0, 2), reduction, kernel(6, 8)]
        self.assert_exposure(events, communication=6, exposed=2)
        exposure = exposure_of(events, only="ReduceScatter")
        self.assertAlmostEqual(exposure.communication, 4)
        self.assertAlmostEqual(exposure.hidden(), 0.5)
        self.assertEqual(exposure_of([kernel(0, 4)]).hidden(), 1)

    def test_compute_inside_of_communication_splits_it(self):
        self.assert_exposure([kernel(0, 1), nccl(1, 9), kernel(3, 4), kernel(6, 7), kernel(9, 10)],
                             compute=4, exposed=6, idle=0)

    def test_copies_from_peers_are_communication(self):
        for name in ("Memcpy PtoP (Device -> Device)", "Memcpy DtoD (Device -> Device)"):
            self.assert_exposure([kernel(0, 4), copy(4, 6, name=name), kernel(6, 8)], communication=2, exposed=2)

    def test_copies_with_the_host_and_on_the_computing_stream_are_neither(self):
        events = [kernel(0, 4), copy(4, 5, name="Memcpy HtoD (Pinned -> Device)"), copy(5, 6, MAIN),
                  event("gpu_memset", "Memset (Device)", MAIN, 6, 7), kernel(7, 8)]
        self.assert_exposure(events, span=8, compute=5, communication=0, exposed=0, idle=0)

    def test_nccl_on_the_computing_stream_is_communication(self):
        self.assert_exposure([kernel(0, 4), nccl(4, 5, MAIN)], compute=4, communication=1, exposed=1)

    def test_sums_on_the_stream_of_reductions_are_communication(self):
        self.assert_exposure([kernel(0, 4), nccl(4, 5, REDUCTIONS), kernel(5, 6, REDUCTIONS, "add"), kernel(6, 9)],
                             compute=7, exposed=2)

    def test_events_of_the_host_are_nothing(self):
        host = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 0.0, "dur": 9e9, "args": {}}
        self.assert_exposure([host, {"ph": "M", "name": "process_name"}, kernel(1, 2)], span=1, compute=1)
        with self.assertRaisesRegex(ValueError, "expected kernels"):
            exposure_of([host])


if __name__ == "__main__":
    unittest.main()
