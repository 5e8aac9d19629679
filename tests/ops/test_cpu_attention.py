"""Attention over pages against the reference backend, and its invariances bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cpu_cases import LEVELS, cpu_ops

from culet.errors import BackendError
from culet.ops.interface import KvType, PageTable
from culet.ops.reference import ReferenceOps

EPS = 1e-6


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([seed, *shape])
    return rng.standard_normal(shape).astype(np.float32)


def table(
    rows: list[tuple[int, int]], num_seqs: int, tokens: list[int], page_tokens: int
) -> PageTable:
    """A page table of (sequence, position) rows; pages are dealt out backwards."""
    counts = [-(-n // page_tokens) for n in tokens]
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    pages = np.arange(offsets[-1], dtype=np.int32)[::-1].copy()
    return PageTable(
        page_tokens=page_tokens,
        row_seq=np.array([s for s, _ in rows], np.int32),
        positions=np.array([p for _, p in rows], np.int32),
        seq_pages=offsets,
        first_page=np.zeros(num_seqs, np.int32),
        pages=pages,
    )


class Case:
    """Sequences whose tokens have fixed random q, k and v, on one backend."""

    def __init__(
        self,
        ops: Any,
        tokens: list[int],
        heads: int,
        kv_heads: int,
        dim: int,
        page_tokens: int = 16,
        kv_type: KvType = "f16",
    ) -> None:
        self.ops, self.tokens, self.page_tokens = ops, tokens, page_tokens
        self.heads, self.kv_heads, self.dim = heads, kv_heads, dim
        num_pages = sum(-(-n // page_tokens) for n in tokens)
        self.kv = ops.kv_layer(num_pages, page_tokens, kv_heads, dim, kv_type)
        self.cos = [np.cos(normal(n, dim // 2, seed=7)) for n in tokens]
        self.sin = [np.sin(normal(n, dim // 2, seed=7)) for n in tokens]

    def step(
        self, rows: list[tuple[int, int]], window: int | None, scale: float = 0.25
    ) -> np.ndarray:
        """The outputs of the rows, after their K and V were written."""
        pages = table(rows, len(self.tokens), self.tokens, self.page_tokens)
        width, kv_width = self.heads * self.dim, self.kv_heads * self.dim
        q = np.stack([normal(width, seed=1000 * s + p + 1) for s, p in rows])
        k = np.stack([normal(kv_width, seed=1000 * s + p + 100001) for s, p in rows])
        v = np.stack([normal(kv_width, seed=1000 * s + p + 200001) for s, p in rows])
        cos = np.stack([self.cos[s][p] for s, p in rows])
        sin = np.stack([self.sin[s][p] for s, p in rows])
        norm = normal(self.dim, seed=3)
        out = np.full_like(q, np.nan)
        self.ops.attention_inputs(q, k, v, norm, norm, True, EPS, cos, sin, self.kv, pages)
        self.ops.attention(out, q, self.kv, pages, window, scale)
        self.ops.sync()
        return out


def sequence(seq: int, begin: int, end: int) -> list[tuple[int, int]]:
    return [(seq, p) for p in range(begin, end)]


def tolerance(kv_type: KvType, bf16: bool) -> float:
    """Of outputs of size about 1, whose values are normed to an rms of 1.

    Scores are below 3 in size here. Where q, k, the shares and v are rounded to bf16 (2^-9 each), a
    score is off by 2 * 2^-9 of at most 3 in the worst case, a value by 2 * 2^-9 of at most 4. In
    float32, values that fall on the other side of a rounding of the store differ by its step.
    """
    if bf16:
        return 2.0**-9 * (2 * 3 * 4 + 2 * 4)
    return {"f32": 2e-5, "f16": 4 * 2.0**-10, "bf16": 4 * 2.0**-7, "q8_0": 4 / 127}[kv_type]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kv_type", ["f32", "f16", "bf16", "q8_0"])
@pytest.mark.parametrize("precision", ["fast", "exact"])
def test_against_reference(level: str, kv_type: KvType, precision: Any) -> None:
    rows = sequence(0, 0, 45) + sequence(1, 0, 13)
    for window in (None, 9):
        found, expected = (
            Case(ops, [45, 13], 4, 2, 32, 8, kv_type).step(rows, window)
            for ops in (cpu_ops(level, precision=precision), ReferenceOps())
        )
        bf16 = level == "avx512bf16" and precision == "fast"
        assert np.abs(found - expected).max() <= tolerance(kv_type, bf16)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"), [(3, 1, 8), (2, 2, 12), (5, 5, 40), (8, 1, 256)]
)
@pytest.mark.parametrize("page_tokens", [1, 4, 16, 32, 1024])
def test_odd_shapes(heads: int, kv_heads: int, dim: int, page_tokens: int) -> None:
    found, expected = (
        Case(ops, [37], heads, kv_heads, dim, page_tokens, "f32").step(sequence(0, 0, 37), None)
        for ops in (cpu_ops(precision="exact"), ReferenceOps())
    )
    assert np.abs(found - expected).max() <= tolerance("f32", False)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("head_dim", [256, 512])
@pytest.mark.parametrize("num_kv_heads", [1, 2])
def test_wide_heads(level: str, head_dim: int, num_kv_heads: int) -> None:
    """As Gemma 4 has them, sequences of different lengths in one step."""
    lengths = [1, 17, 513]
    rows = [row for seq, length in enumerate(lengths) for row in sequence(seq, 0, length)]
    found, expected = (
        Case(ops, lengths, 4, num_kv_heads, head_dim, 64, "f32").step(rows, None, 1 / head_dim)
        for ops in (cpu_ops(level, precision="exact"), ReferenceOps())
    )
    assert np.abs(found - expected).max() <= tolerance("f32", False)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
@pytest.mark.parametrize("window", [None, 300])
def test_chunks_batches_and_threads_change_nothing(
    level: str, kv_type: KvType, window: int | None
) -> None:
    """Around the ends of segments of 512 tokens."""
    length = 1050 if level != "portable" else 530
    shape = (2, 1, 32, 64, kv_type)
    whole = Case(cpu_ops(level, 1), [length], *shape).step(sequence(0, 0, length), window)
    pieces = Case(cpu_ops(level, 2), [length], *shape)
    found = []
    bounds = [0, 1, 8, 500, 511, 512, 513, 525, length - 1, length]
    for begin, end in zip(bounds, bounds[1:], strict=False):
        found.append(pieces.step(sequence(0, begin, end), window))
    np.testing.assert_array_equal(np.concatenate(found), whole)
    batch = Case(cpu_ops(level, 3), [length, 40], *shape)
    mixed = batch.step(sequence(1, 0, 40) + sequence(0, 0, length), window)
    np.testing.assert_array_equal(mixed[40:], whole)


def test_freed_pages_of_a_window() -> None:
    """first_page > 0: only the pages that the window reaches are listed."""
    case = Case(cpu_ops(), [64], 2, 1, 32, 8, "f32")
    expected = case.step(sequence(0, 0, 64), 10)[63:]
    pages = table([(0, 63)], 1, [64], 8)
    kept = PageTable(
        8,
        pages.row_seq,
        pages.positions,
        np.array([0, 2], np.int32),
        np.array([6], np.int32),
        pages.pages[6:].copy(),
    )
    q = normal(64, seed=64)[None]
    norm = normal(32, seed=3)
    out = np.empty_like(q)
    case.ops.attention_inputs(
        q, None, None, norm, None, False, EPS, case.cos[0][63:], case.sin[0][63:], None, kept
    )
    case.ops.attention(out, q, case.kv, kept, 10, 0.25)
    case.ops.sync()
    np.testing.assert_array_equal(out, expected)
    with pytest.raises(ValueError, match="a token that a row sees has no page"):
        case.ops.attention(out, q, case.kv, kept, 20, 0.25)


def test_value_from_raw_key() -> None:
    """v None: V is k before norm and rotation."""
    results = []
    for ops in (cpu_ops(precision="exact"), ReferenceOps()):
        kv = ops.kv_layer(1, 16, 1, 16, "f32")
        pages = table(sequence(0, 0, 5), 1, [16], 16)
        q, k = normal(5, 32), normal(5, 16, seed=1)
        norm = normal(16, seed=2)
        cos, sin = np.cos(normal(5, 8)), np.sin(normal(5, 8))
        out = np.empty_like(q)
        ops.attention_inputs(q, k, None, norm, norm, True, EPS, cos, sin, kv, pages)
        ops.attention(out, q, kv, pages, None, 1.0)
        ops.sync()
        results.append(out)
    assert np.abs(results[0] - results[1]).max() <= tolerance("f32", False)


def test_copy_page() -> None:
    case = Case(cpu_ops(), [16, 16], 2, 1, 32, 16)
    expected = case.step(sequence(0, 0, 16), None)
    pages = table([(0, 15), (1, 15)], 2, [16, 16], 16)
    case.ops.copy_page(case.kv, int(pages.pages[0]), int(pages.pages[1]))
    copied = PageTable(
        16,
        np.array([1], np.int32),
        np.array([15], np.int32),
        pages.seq_pages,
        pages.first_page,
        pages.pages,
    )
    q = normal(64, seed=16)[None]
    norm = normal(32, seed=3)
    out = np.empty_like(q)
    case.ops.attention_inputs(
        q, None, None, norm, None, False, EPS, case.cos[0][15:], case.sin[0][15:], None, copied
    )
    case.ops.attention(out, q, case.kv, copied, None, 0.25)
    case.ops.sync()
    np.testing.assert_array_equal(out[0], expected[15])


def test_levels_agree_bit_for_bit() -> None:
    """But for the level that multiplies pairs of bf16; `exact` has none of that."""
    results = [
        Case(cpu_ops(level, precision="exact"), [70], 4, 2, 48, 16, "f16").step(
            sequence(0, 0, 70), 30
        )
        for level in LEVELS
    ]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_f16_storage_saturates() -> None:
    ops = cpu_ops(precision="exact")
    kv = ops.kv_layer(1, 16, 1, 16, "f16")
    pages = table([(0, 0)], 1, [16], 16)
    q = np.zeros((1, 16), np.float32)
    v = np.full((1, 16), 1e6, np.float32)
    one, zero = np.ones((1, 8), np.float32), np.zeros((1, 8), np.float32)
    out = np.empty_like(q)
    ops.attention_inputs(q, v.copy(), v, None, None, False, EPS, one, zero, kv, pages)
    ops.attention(out, q, kv, pages, None, 1.0)
    ops.sync()
    assert (out == 65504).all()


def test_q8_0_needs_whole_groups() -> None:
    with pytest.raises(BackendError, match="heads of 48"):
        cpu_ops().kv_layer(1, 16, 1, 48, "q8_0")
