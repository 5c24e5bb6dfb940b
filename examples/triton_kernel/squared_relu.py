"""weight * relu(x)^2 and its gradients, in Triton. R rows, N columns; contiguous float32."""

import triton
import triton.language as tl


@triton.jit
def forward(x, weight, out, size, N, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < size
    positive = tl.maximum(tl.load(x + i, mask=inside), 0.0)
    tl.store(out + i, tl.load(weight + i % N, mask=inside) * positive * positive, mask=inside)


@triton.jit
def grad_x(grad_out, x, weight, out, size, N, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < size
    positive = tl.maximum(tl.load(x + i, mask=inside), 0.0)
    grad = tl.load(grad_out + i, mask=inside) * tl.load(weight + i % N, mask=inside)
    tl.store(out + i, grad * 2.0 * positive, mask=inside)


@triton.jit
def grad_weight(grad_out, x, out, R, N, BLOCK: tl.constexpr):
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = column < N
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(R):  # in order: the same bits in every run
        positive = tl.maximum(tl.load(x + row * N + column, mask=inside), 0.0)
        total += tl.load(grad_out + row * N + column, mask=inside) * positive * positive
    tl.store(out + column, total, mask=inside)


# The kernels that compile.py compiles: function, types of its arguments, elements a block.
KERNELS = [
    (forward, "*fp32 *fp32 *fp32 i64 i64", 1024),
    (grad_x, "*fp32 *fp32 *fp32 *fp32 i64 i64", 1024),
    (grad_weight, "*fp32 *fp32 *fp32 i64 i64", 128),
]
