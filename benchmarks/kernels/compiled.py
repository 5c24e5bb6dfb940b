"""The same operators from torch.compile, and Liger's where it is installed, as rows beside those of kernels_benchmark.

usage: compiled.py rms_norm|silu_mul|rotary|norm_rotary|linear_cross_entropy [--device cuda|cpu]

Shapes, names of operations and the way of timing are those of the .cpp file of that name and of device/device_table.h:
runs of up to 16 calls over inputs that the L2 cache does not hold, each behind other work of the device. `compiled`: the
formula in PyTorch's operators through torch.compile, forward and backward. cpu: small shapes, to try the script.
"""

import argparse
import math
import statistics
import time

import torch
from torch.nn import functional

try:
    from liger_kernel import ops as liger
except ImportError:
    liger = None

RUNS, WARM_UPS, MOST_CALLS, SECONDS_OF_RUN = 25, 3, 16, 4e-3
OUTSIDE_L2 = 256e6  # bytes
TINY = 64  # divisor of shapes on a CPU


class Clock:
    """Seconds of the device, or of the processor where there is none."""

    def __init__(self, device):
        self.device = device

    def seconds(self, work):
        if self.device.type == "cpu":
            begun = time.perf_counter()
            work()
            return time.perf_counter() - begun
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3


class Table:
    def __init__(self, device):
        self.device, self.clock = device, Clock(device)
        size = 1 << (30 if device.type == "cuda" else 24)
        self.source, self.target = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
        median, *_ = self.times(lambda _: self.target.copy_(self.source), occupy=lambda: None)
        self.bandwidth = 2 * size / median
        print("\n| operation | shape | implementation | us (p10 to p90) | MB | GB/s | of copy | TFLOP/s | host us |")
        print("|---|---|---|---|---|---|---|---|---|")
        self.row("copy", f"{size >> 20} MiB", "PyTorch", lambda _: self.target.copy_(self.source), bytes_moved=2 * size)

    def occupy(self):
        for _ in range(8):
            self.target.copy_(self.source)

    def times(self, operator, occupy):
        """Median, first and last decile of seconds a call, and the median of the host's."""
        call = 0
        for _ in range(WARM_UPS):
            seconds = self.clock.seconds(lambda: operator(call))
            call += 1
        num_calls = min(max(int(SECONDS_OF_RUN / seconds), 1), MOST_CALLS)
        device, host = [], []

        def run():
            begun = time.perf_counter()
            for index in range(num_calls):
                operator(call + index)
            host.append((time.perf_counter() - begun) / num_calls)

        for _ in range(RUNS):
            occupy()
            device.append(self.clock.seconds(run) / num_calls)
            call += num_calls
        deciles = statistics.quantiles(device, n=10, method="inclusive")
        return statistics.median(device), deciles[0], deciles[-1], statistics.median(host)

    def row(self, operation, shape, implementation, operator, bytes_moved=0, flop=0):
        median, low, high, host = self.times(operator, self.occupy)
        moved = ["", "", ""]
        if bytes_moved:
            rate = bytes_moved / median
            moved = [f"{bytes_moved / 1e6:.1f}", f"{rate / 1e9:.0f}", f"{100 * rate / self.bandwidth:.1f} %"]
        print("| " + " | ".join([operation, shape, implementation, f"{median * 1e6:.1f} ({low * 1e6:.1f} to {high * 1e6:.1f})",
                                 *moved, f"{flop / median / 1e12:.0f}" if flop else "", f"{host * 1e6:.1f}"]) + " |", flush=True)

    def both_ways(self, operation, shape, implementations, make_inputs, forward_bytes, backward_bytes):
        """A row for forward and one for backward of each; implementations: name -> function of inputs."""
        sets = [make_inputs() for _ in range(max(2, math.ceil(OUTSIDE_L2 / forward_bytes)))]
        for name, function in implementations.items():
            self.row(f"{operation} forward", shape, name, lambda call: function(*sets[call % len(sets)]), forward_bytes)
            outputs = [as_tuple(function(*inputs)) for inputs in sets]
            grads = [tuple(map(torch.randn_like, each)) for each in outputs]
            leaves = [[tensor for tensor in inputs if tensor.requires_grad] for inputs in sets]

            def backward(call):
                i = call % len(sets)
                torch.autograd.grad(outputs[i], leaves[i], grads[i], retain_graph=True)

            self.row(f"{operation} backward", shape, name, backward, backward_bytes)


def as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


def compiled(function):
    return torch.compile(function, dynamic=False)


def leaf(*sizes, device, dtype=torch.bfloat16):
    return torch.randn(*sizes, device=device, dtype=dtype).requires_grad_()


def name_of(dtype):
    return {torch.bfloat16: "BFloat16", torch.float32: "Float"}[dtype]


def scaled_down(rows, device):
    return rows if device.type == "cuda" else max(rows // TINY, 2)


def rms_norm(table):
    def norm(x, weight):
        return functional.rms_norm(x, x.shape[-1:], weight, 1e-6)

    def add_norm(x, residual, weight):
        total = x + residual
        return total, norm(total, weight)

    shapes = [(8192, 2048), (16384, 2048), (8192, 4096), (16384, 4096), (262144, 128), (131072, 256), (32768, 1024), (8192, 7168)]
    for num_rows, columns in shapes:
        rows = scaled_down(num_rows, table.device)
        size = rows * columns * 2
        implementations = {"compiled": compiled(norm)}
        if liger:
            implementations["Liger"] = lambda x, weight: liger.rms_norm.LigerRMSNormFunction.apply(x, weight, 1e-6, 0.0, "llama",
                                                                                                   False)
        table.both_ways("rms_norm", f"{rows} x {columns} BFloat16", implementations,
                        lambda: (leaf(rows, columns, device=table.device), leaf(columns, device=table.device)), 2 * size, 3 * size)
    for columns in (2048, 4096):
        rows = scaled_down(8192, table.device)
        size = rows * columns * 2
        table.both_ways("add_rms_norm", f"{rows} x {columns} BFloat16", {"compiled": compiled(add_norm)},
                        lambda: (leaf(rows, columns, device=table.device), leaf(rows, columns, device=table.device),
                                 leaf(columns, device=table.device)), 4 * size, 4 * size)


def silu_mul(table):
    for num_rows, columns, dtype in ((8192, 6144, torch.bfloat16), (8192, 14336, torch.bfloat16), (65536, 768, torch.bfloat16),
                                     (8192, 6144, torch.float32)):
        rows = scaled_down(num_rows, table.device)
        size = rows * columns * dtype.itemsize
        implementations = {"compiled": compiled(lambda gate, up: functional.silu(gate) * up)}
        if liger:
            implementations["Liger"] = lambda gate, up: liger.swiglu.LigerSiLUMulFunction.apply(gate.view_as(gate), up.view_as(up))
        table.both_ways("silu_mul", f"{rows} x {columns} {name_of(dtype)}", implementations,
                        lambda: tuple(leaf(rows, columns, device=table.device, dtype=dtype) for _ in range(2)), 3 * size, 5 * size)


def turned(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos.unsqueeze(2) + torch.cat((-second, first), -1) * sin.unsqueeze(2)


def heads_of(table, q_heads, k_heads):
    """Queries, keys and two tables; bytes of the first two and of the tables."""
    sequence = scaled_down(4096, table.device)

    def make():
        rows = torch.randn(2, sequence, 128, device=table.device, dtype=torch.bfloat16)
        return (leaf(2, sequence, q_heads, 128, device=table.device), leaf(2, sequence, k_heads, 128, device=table.device), rows,
                rows.clone())

    shape = f"2 x {sequence} x ({q_heads} + {k_heads}) x 128 BFloat16, tables BFloat16"
    return make, shape, 2 * sequence * (q_heads + k_heads) * 128 * 2, 2 * 2 * sequence * 128 * 2


def rotary(table):
    for q_heads, k_heads in ((16, 8), (32, 4)):
        make, shape, heads, tables = heads_of(table, q_heads, k_heads)
        table.both_ways("apply_rotary", shape,
                        {"compiled": compiled(lambda q, k, cos, sin: (turned(q, cos, sin), turned(k, cos, sin)))}, make,
                        2 * heads + tables, 2 * heads + tables)


def norm_rotary(table):
    def function(q, k, cos, sin, q_weight, k_weight):
        q, k = (functional.rms_norm(x, (128,), weight, 1e-6) for x, weight in ((q, q_weight), (k, k_weight)))
        return turned(q, cos, sin), turned(k, cos, sin)

    for q_heads, k_heads in ((16, 8), (32, 4), (32, 8)):
        make, shape, heads, tables = heads_of(table, q_heads, k_heads)
        table.both_ways("norm_rotary", shape, {"compiled": compiled(function)},
                        lambda: (*make(), leaf(128, device=table.device), leaf(128, device=table.device)), 2 * heads + tables,
                        3 * heads + tables)


def linear_cross_entropy(table):
    for all_rows, hidden_size, all_columns in ((8192, 4096, 151936), (8192, 2048, 151936)):
        rows, vocabulary = scaled_down(all_rows, table.device), scaled_down(all_columns, table.device)
        hidden, weight = leaf(rows, hidden_size, device=table.device), leaf(vocabulary, hidden_size, device=table.device)
        with torch.no_grad():
            weight.mul_(0.02)
        targets = torch.arange(rows, device=table.device) * 7919 % vocabulary
        implementations = {"compiled, dense logits": compiled(
            lambda h, w: functional.cross_entropy((h @ w.t()).float(), targets, reduction="sum"))}
        if liger:
            implementations["Liger"] = lambda h, w: liger.fused_linear_cross_entropy.LigerFusedLinearCrossEntropyFunction.apply(
                h, w, targets, None, None, -100, 0.0, 0.0, "sum")[0]
        for name, function in implementations.items():
            def both(_, function=function):
                torch.autograd.grad(function(hidden, weight), (hidden, weight))

            extra = ""
            if table.device.type == "cuda":
                both(0)
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                both(0)
                gradients = 2 * (hidden.numel() + weight.numel())
                extra = f", {(torch.cuda.max_memory_allocated() - before - gradients) / 2**30:.3f} GiB extra"
            table.row("linear_cross_entropy fwd+bwd", f"T{rows} H{hidden_size} V{vocabulary} bf16", name + extra, both,
                      flop=3 * 2 * rows * hidden_size * vocabulary)


OPERATORS = {function.__name__: function for function in (rms_norm, silu_mul, rotary, norm_rotary, linear_cross_entropy)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operator", choices=OPERATORS)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = 64  # one function has many shapes; beyond the limit it would run uncompiled
    OPERATORS[options.operator](Table(torch.device(options.device)))
    if liger is None:
        print("\nLiger is not installed here.")


if __name__ == "__main__":
    main()
