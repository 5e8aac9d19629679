"""K/V pages of the reference backend: what is stored in each type, and attention over pages.

Attention is compared with a plain softmax in float64 over the values that are stored.
"""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, dequantize, quantize
from numpy.typing import NDArray

from culet.errors import BackendError
from culet.ops.interface import KvType, PageTable
from culet.ops.reference import ReferenceOps
from culet.ops.reference_kv import ReferenceKvLayer, row_slots, to_bf16, to_q8_0

Float32Array = NDArray[np.float32]
KV_TYPES: tuple[KvType, ...] = get_args(KvType)
OPS = ReferenceOps()


def table_of(
    lengths: list[int], page_tokens: int, first: list[int] | None = None, seed: int = 0
) -> tuple[PageTable, int]:
    """Page table of whole sequences (rows from position 0 on), their pages shuffled.

    `first`: numbers of the pages before which each sequence has let go.
    """
    counts = [-(-n // page_tokens) for n in lengths]
    first = first or [0] * len(lengths)
    ids = np.random.default_rng(seed).permutation(sum(counts) + 3).astype(np.int32)
    pages, offsets, taken = [], [0], 0
    for count, skipped in zip(counts, first, strict=True):
        pages.append(ids[taken + skipped : taken + count])
        taken += count
        offsets.append(offsets[-1] + count - skipped)
    return PageTable(
        page_tokens=page_tokens,
        row_seq=np.repeat(np.arange(len(lengths), dtype=np.int32), lengths),
        positions=np.concatenate([np.arange(n, dtype=np.int32) for n in lengths]),
        seq_pages=np.array(offsets, np.int32),
        first_page=np.array(first, np.int32),
        pages=np.concatenate(pages),
    ), len(ids)


def rows_of(table: PageTable, rows: NDArray[np.integer]) -> PageTable:
    """The same pages for some of the rows."""
    return PageTable(
        table.page_tokens, table.row_seq[rows], table.positions[rows], table.seq_pages,
        table.first_page, table.pages,
    )  # fmt: skip


def stored(values: Float32Array, kv_type: KvType) -> Float32Array:
    """What a value is after it has been stored, by other implementations of the types."""
    if kv_type == "f16":
        return np.clip(values, -65504, 65504).astype(np.float16).astype(np.float32)
    if kv_type == "bf16":
        return torch.from_numpy(values).bfloat16().float().numpy()
    if kv_type == "q8_0":
        q8 = GGMLQuantizationType.Q8_0
        return dequantize(quantize(values, q8), q8).reshape(values.shape)
    return values


def filled(
    rng: np.random.Generator,
    table: PageTable,
    num_pages: int,
    kv_type: KvType,
    num_kv_heads: int = 2,
    head_dim: int = 32,
) -> tuple[ReferenceKvLayer, Float32Array, Float32Array]:
    """A layer with random K and V at every row's place, and what is stored of them."""
    layer = ReferenceKvLayer(num_pages, table.page_tokens, num_kv_heads, head_dim, kv_type)
    shape = (len(table.positions), num_kv_heads, head_dim)
    k, v = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    pages, offsets = row_slots(table)
    layer.k.write(pages, offsets, k)
    layer.v.write(pages, offsets, v)
    return layer, stored(k, kv_type), stored(v, kv_type)


def plain_attention(
    q: Float32Array, k: Float32Array, v: Float32Array, table: PageTable, window: int | None,
    scale: float, rows: NDArray[np.integer],
) -> NDArray[np.float64]:  # fmt: skip
    """Rows [r, heads, head_dim] over all of k, v [n, kv_heads, head_dim], in float64."""
    out = np.empty(q.shape)
    group = q.shape[1] // k.shape[1]
    for i, row in enumerate(rows):
        t = table.positions[row]
        near = table.positions > t - window if window is not None else True
        seen = (table.row_seq == table.row_seq[row]) & (table.positions <= t) & near
        for head in range(q.shape[1]):
            keys = k[seen, head // group].astype(np.float64)
            values = v[seen, head // group].astype(np.float64)
            scores = keys @ q[i, head] * scale
            share = np.exp(scores - scores.max())
            out[i, head] = share @ values / share.sum()
    return out


# ---- storage -------------------------------------------------------------------------------------
@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_values_are_stored_as_their_type_says(kv_type: KvType) -> None:
    rng = np.random.default_rng(1)
    table, num_pages = table_of([70, 9], 16)
    scale = np.exp(rng.uniform(-12, 12, (79, 2, 1))).astype(np.float32)
    layer = ReferenceKvLayer(num_pages, 16, 2, 64, kv_type)
    k = rng.standard_normal((79, 2, 64)).astype(np.float32) * scale
    pages, offsets = row_slots(table)
    layer.k.write(pages, offsets, k)
    for head in range(2):
        found = layer.k.read(pages, head)[np.arange(79), offsets]
        np.testing.assert_array_equal(found, stored(k, kv_type)[:, head])


def test_f16_saturates() -> None:
    layer = ReferenceKvLayer(1, 16, 1, 2, "f16")
    zero = np.zeros(1, np.int32)
    layer.v.write(zero, zero, np.array([[[1e9, -7e4]]], np.float32))
    assert layer.v.read(zero, 0)[0, 0].tolist() == [65504.0, -65504.0]


def test_bf16_rounds_to_even_and_q8_0_away_from_zero() -> None:
    halves = np.array([1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8)], np.float32)
    bits = to_bf16(halves).astype(np.uint32) << 16
    assert bits.view(np.float32).tolist() == [1.0, 1 + 2**-6, -1.0]
    row = np.zeros((1, 32), np.float32)
    row[0, :4] = [127.0, 2.5, -2.5, 0.5]
    codes, scales = to_q8_0(row)
    assert codes[0, :4].tolist() == [127, 3, -3, 1]
    assert scales.tolist() == [[1.0]]


def test_zeros_and_bytes() -> None:
    codes, scales = to_q8_0(np.zeros((2, 64), np.float32))
    assert not codes.any() and not scales.any()
    bytes_of = {t: ReferenceKvLayer(3, 16, 2, 64, t).num_bytes for t in KV_TYPES}
    values = 2 * 3 * 2 * 16 * 64
    assert bytes_of == {
        "f32": 4 * values, "f16": 2 * values, "bf16": 2 * values, "q8_0": values // 32 * 34
    }  # fmt: skip


def test_q8_0_needs_whole_groups() -> None:
    with pytest.raises(BackendError, match="multiple of 32"):
        OPS.kv_layer(1, 16, 1, 40, "q8_0")


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_copied_pages_are_equal(kv_type: KvType) -> None:
    table, num_pages = table_of([40], 16)
    layer, _, _ = filled(np.random.default_rng(2), table, num_pages, kv_type)
    source, target = int(table.pages[0]), int(table.pages[2])
    OPS.copy_page(layer, source, target)
    for store in (layer.k, layer.v):
        pages = np.array([source, target], np.int32)
        first, second = store.read(pages, 1)
        assert first.any()
        np.testing.assert_array_equal(first, second)


# ---- inputs --------------------------------------------------------------------------------------
@pytest.mark.parametrize("normalize_v", [True, False])
@pytest.mark.parametrize("with_v", [True, False])
def test_attention_inputs(normalize_v: bool, with_v: bool) -> None:
    rng = np.random.default_rng(3)
    table, num_pages = table_of([5, 3], 16)
    heads, kv_heads, width, eps = 4, 2, 32, 1e-6
    q = rng.standard_normal((8, heads * width)).astype(np.float32)
    k, v = (rng.standard_normal((8, kv_heads * width)).astype(np.float32) for _ in range(2))
    q_norm, k_norm = (rng.standard_normal(width).astype(np.float32) for _ in range(2))
    angle = rng.uniform(-3, 3, (8, width // 2))
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)

    def turned(x: Float32Array, norm: Float32Array) -> NDArray[np.float64]:
        y = x.reshape(8, -1, width).astype(np.float64)
        y = y / np.sqrt((y**2).mean(-1, keepdims=True) + eps) * norm
        pairs = y[..., : width // 2] + 1j * y[..., width // 2 :]
        pairs = pairs * np.exp(1j * angle)[:, None]
        return np.concatenate([pairs.real, pairs.imag], axis=-1)

    layer = ReferenceKvLayer(num_pages, 16, kv_heads, width, "f32")
    raw_q, raw_k, raw_v = q.copy(), k.copy(), v.copy() if with_v else k.copy()
    OPS.attention_inputs(
        q, k, v if with_v else None, q_norm, k_norm, normalize_v, eps, cos, sin, layer, table
    )
    np.testing.assert_allclose(q.reshape(8, heads, width), turned(raw_q, q_norm), atol=1e-5)
    expected_v = raw_v.reshape(8, kv_heads, width).astype(np.float64)
    if normalize_v:
        expected_v = expected_v / np.sqrt((expected_v**2).mean(-1, keepdims=True) + eps)
    pages, offsets = row_slots(table)
    for head in range(kv_heads):
        at = (np.arange(8), offsets)
        expected_k = turned(raw_k, k_norm)[:, head]
        np.testing.assert_allclose(layer.k.read(pages, head)[at], expected_k, atol=1e-5)
        np.testing.assert_allclose(layer.v.read(pages, head)[at], expected_v[:, head], atol=1e-5)


# ---- attention -----------------------------------------------------------------------------------
@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("window", [None, 1, 7, 600])
@pytest.mark.parametrize("page_tokens", [16, 64, 1024])
def test_attention_is_softmax_over_the_stored_values(
    kv_type: KvType, window: int | None, page_tokens: int
) -> None:
    """Sequences over several segments of 512 tokens, pages in any order, odd rows asked for.

    Scores of size s bring a relative error of s eps into a share; with the sums, 600 eps is ample.
    """
    rng = np.random.default_rng(4)
    table, num_pages = table_of([1300, 3, 530], page_tokens)
    layer, k, v = filled(rng, table, num_pages, kv_type)
    rows = np.array([0, 5, 511, 512, 1024, 1299, 1300, 1302, 1303, 1815, 1832])
    q = rng.standard_normal((len(rows), 6, 32)).astype(np.float32)
    out = OPS.empty(len(rows), 6 * 32)
    part = rows_of(table, rows)
    OPS.attention(out, q.reshape(len(rows), -1), layer, part, window, 0.3)
    expected = plain_attention(q, k, v, table, window, 0.3, rows)
    np.testing.assert_allclose(out.reshape(q.shape), expected, rtol=0, atol=600 * 2.0**-23)


def test_pages_that_left_the_window_are_not_missed() -> None:
    rng = np.random.default_rng(5)
    whole, num_pages = table_of([200], 16, seed=9)
    layer, k, v = filled(rng, whole, num_pages, "f32")
    trimmed, _ = table_of([200], 16, first=[10], seed=9)
    rows = np.array([195, 199])
    q = rng.standard_normal((2, 2, 32)).astype(np.float32)
    outs = []
    for table in (whole, trimmed):
        outs.append(OPS.empty(2, 64))
        OPS.attention(outs[-1], q.reshape(2, -1), layer, rows_of(table, rows), 30, 1.0)
    np.testing.assert_array_equal(outs[0], outs[1])
    expected = plain_attention(q, k, v, whole, 30, 1.0, rows)
    np.testing.assert_allclose(outs[0].reshape(q.shape), expected, atol=1e-4)


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("num_heads", [1, 5, 20])
def test_a_row_depends_on_no_other_row(window: int | None, num_heads: int) -> None:
    """Bit for bit: alone, among others, and whatever stands in pages that it does not see."""
    rng = np.random.default_rng(6)
    table, num_pages = table_of([700, 40], 64)
    layer, _, _ = filled(rng, table, num_pages, "f32", num_kv_heads=1)
    q = rng.standard_normal((740, num_heads * 32)).astype(np.float32)
    together = OPS.empty(740, num_heads * 32)
    OPS.attention(together, q, layer, table, window, 1.0)
    for rows in (np.arange(600, 617), np.array([3]), np.array([699]), np.array([1, 690, 705])):
        out = OPS.empty(len(rows), num_heads * 32)
        OPS.attention(out, q[rows], layer, rows_of(table, rows), window, 1.0)
        np.testing.assert_array_equal(out, together[rows])
    later = np.flatnonzero(table.positions > 100)
    pages, offsets = row_slots(rows_of(table, later))
    layer.k.write(pages, offsets, np.full((len(later), 1, 32), 1e30, np.float32))
    out = OPS.empty(1, num_heads * 32)
    OPS.attention(out, q[100:101], layer, rows_of(table, np.array([100])), window, 1.0)
    np.testing.assert_array_equal(out, together[100:101])


@pytest.mark.parametrize("head_dim", [256, 512])
@pytest.mark.parametrize("num_kv_heads", [1, 2])
def test_wide_heads(head_dim: int, num_kv_heads: int) -> None:
    rng = np.random.default_rng(7)
    table, num_pages = table_of([1, 17, 513], 16)
    layer, k, v = filled(rng, table, num_pages, "f16", num_kv_heads, head_dim)
    rows = np.array([0, 17, 530])
    q = rng.standard_normal((3, 4, head_dim)).astype(np.float32)
    out = OPS.empty(3, 4 * head_dim)
    scale = head_dim**-0.5
    OPS.attention(out, q.reshape(3, -1), layer, rows_of(table, rows), None, scale)
    expected = plain_attention(q, k, v, table, None, scale, rows)
    np.testing.assert_allclose(out.reshape(q.shape), expected, rtol=0, atol=600 * 2.0**-23)
