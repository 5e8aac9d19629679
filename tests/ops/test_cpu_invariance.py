"""One layer at E2B's true widths: bitwise the same rows for every chunking and thread count."""

from __future__ import annotations

import numpy as np
import pytest
from cpu_cases import Float32Array, cpu_ops, random_weight

from culet._native import Weight
from culet.ops.cpu.backend import CpuOps
from culet.ops.interface import KvType, PageTable

HIDDEN, HEADS, HEAD_DIM, FFN, PER_LAYER = 1536, 8, 256, 6144, 256
WINDOW, PAGE_TOKENS, EPS = 512, 64, 1e-6
# Their ends cross the segments' ends at 512 (11 rows) and at 1,024 (251 rows).
CHUNKS = [251, 253, 1, 2, 11, 12, 13, 252, 1, 2, 11, 12, 13, 251, 1]
LENGTH = sum(CHUNKS)


class Layer:
    """Random weights of the types that an E2B file has, and K/V pages of one sequence."""

    def __init__(self, threads: int, kv_type: KvType) -> None:
        self.ops: CpuOps = cpu_ops(threads=threads)

        def weight(name: str, out: int, inputs: int, seed: int) -> Weight:
            return self.ops.weight(random_weight(name, out, inputs, seed))

        width = HEADS * HEAD_DIM
        self.q = weight("Q4_0", width, HIDDEN, 1)
        self.k = weight("Q4_K", HEAD_DIM, HIDDEN, 2)
        self.v = weight("Q6_K", HEAD_DIM, HIDDEN, 3)
        self.o = weight("Q4_0", HIDDEN, width, 4)
        self.gate = weight("Q4_0", FFN, HIDDEN, 5)
        self.up = weight("Q8_0", FFN, HIDDEN, 6)
        self.down = weight("Q5_K", HIDDEN, FFN, 7)
        self.ple_gate = weight("BF16", PER_LAYER, HIDDEN, 8)
        self.ple_projection = weight("BF16", HIDDEN, PER_LAYER, 9)
        self.num_pages = -(-LENGTH // PAGE_TOKENS)
        self.kv = self.ops.kv_layer(self.num_pages, PAGE_TOKENS, 1, HEAD_DIM, kv_type)
        rng = np.random.default_rng(0)
        self.norms = rng.uniform(0.5, 1.5, (5, HIDDEN)).astype(np.float32)
        self.head_norm = rng.uniform(0.5, 1.5, HEAD_DIM).astype(np.float32)
        self.x = rng.standard_normal((LENGTH, HIDDEN)).astype(np.float32)
        self.per_layer = rng.standard_normal((LENGTH, PER_LAYER)).astype(np.float32)
        self.frequencies = (1e4 ** -(np.arange(HEAD_DIM // 2) * 2 / HEAD_DIM)).astype(np.float32)

    def run(self, begin: int, end: int) -> Float32Array:
        """The layer's output rows for positions [begin, end)."""
        ops, n = self.ops, end - begin
        x = self.x[begin:end].copy()
        pages = PageTable(
            page_tokens=PAGE_TOKENS,
            row_seq=np.zeros(n, np.int32),
            positions=np.arange(begin, end, dtype=np.int32),
            seq_pages=np.array([0, self.num_pages], np.int32),
            first_page=np.zeros(1, np.int32),
            pages=np.arange(self.num_pages, dtype=np.int32)[::-1].copy(),
        )
        width = HEADS * HEAD_DIM
        cos, sin = np.empty((2, n, HEAD_DIM // 2), np.float32)
        q, mixed = np.empty((2, n, width), np.float32)
        k, v = np.empty((2, n, HEAD_DIM), np.float32)
        hidden = np.empty((n, FFN), np.float32)
        ops.rope_table(cos, sin, pages.positions, self.frequencies)
        ops.norm_linear([q, k, v], x, self.norms[0], EPS, [self.q, self.k, self.v])
        ops.attention_inputs(
            q, k, v, self.head_norm, self.head_norm, True, EPS, cos, sin, self.kv, pages
        )
        ops.attention(mixed, q, self.kv, pages, WINDOW, 1.0 / 16)
        ops.linear_norm_add(x, mixed, self.o, self.norms[1], EPS)
        ops.gate_up(hidden, x, self.norms[2], EPS, self.gate, self.up)
        ops.linear_norm_add(x, hidden, self.down, self.norms[3], EPS)
        ops.per_layer_step(
            x, self.per_layer[begin:end], self.ple_gate, self.ple_projection, self.norms[4], EPS
        )
        ops.sync()
        return x


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_chunks_and_threads_change_nothing(kv_type: KvType) -> None:
    whole = Layer(1, kv_type).run(0, LENGTH)
    assert np.isfinite(whole).all()
    for threads in (1, 2):
        layer = Layer(threads, kv_type)
        ends = np.cumsum(CHUNKS)
        for size, end in zip(CHUNKS, ends, strict=True):
            rows = layer.run(end - size, end)
            np.testing.assert_array_equal(rows, whole[end - size : end], err_msg=f"{size} rows")
