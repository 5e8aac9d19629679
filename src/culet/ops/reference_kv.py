"""K/V pages of the reference backend in every storage type, and attention over them.

Knows pages and positions; knows nothing of layers, sequences' owners or weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from culet.errors import BackendError
from culet.ops.interface import ATTENTION_SEGMENT_TOKENS, Int32Array, KvType, PageTable

Float32Array = NDArray[np.float32]

Q8_GROUP = 32
_F16_MAX = np.float32(65504.0)
# Query rows (times heads of a group) that share one matmul. BLAS chooses its kernel by shape, so a
# fixed shape is what makes a row's result independent of the other rows.
_QUERY_ROWS = 8


def to_bf16(values: Float32Array) -> NDArray[np.uint16]:
    """bfloat16 bits of finite values, rounded to nearest even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: NDArray[np.uint16]) -> Float32Array:
    """The float32 values of bfloat16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def round_half_away(values: Float32Array) -> Float32Array:
    """C's roundf."""
    return np.trunc(values + np.copysign(np.float32(0.5), values))


def to_q8_0(values: Float32Array) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """Codes [..., d] and scales [..., d / 32] of ggml's Q8_0 along the last axis."""
    groups = values.reshape(*values.shape[:-1], -1, Q8_GROUP)
    scale = np.abs(groups).max(axis=-1) / np.float32(127.0)
    inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
    codes = round_half_away(groups * inverse[..., None]).astype(np.int8)
    return codes.reshape(values.shape), scale.astype(np.float16)


class PlainStore:
    """Values [num_pages, num_kv_heads, page_tokens, head_dim] in f32, f16 or bf16."""

    def __init__(self, shape: tuple[int, int, int, int], kv_type: KvType) -> None:
        self._kv_type = kv_type
        dtype = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}[kv_type]
        # Zeroed: attention multiplies unwritten tokens by a share of 0, which must not give NaN.
        self._values: NDArray[np.generic] = np.zeros(shape, dtype=dtype)

    @property
    def num_bytes(self) -> int:
        return int(self._values.nbytes)

    def write(self, pages: Int32Array, offsets: Int32Array, values: Float32Array) -> None:
        """Store values [n, num_kv_heads, head_dim] at token `offsets[i]` of page `pages[i]`."""
        encoded: NDArray[np.generic]
        if self._kv_type == "bf16":
            encoded = to_bf16(values)
        elif self._kv_type == "f16":
            encoded = np.clip(values, -_F16_MAX, _F16_MAX).astype(np.float16)
        else:
            encoded = values
        self._values[pages, :, offsets] = encoded

    def read(self, pages: Int32Array, head: int) -> Float32Array:
        """Stored values of one head, [len(pages), page_tokens, head_dim] in float32."""
        stored = self._values[pages, head]
        return from_bf16(stored) if self._kv_type == "bf16" else stored.astype(np.float32)

    def copy_page(self, source: int, target: int) -> None:
        """Page `target` becomes a copy of page `source`."""
        self._values[target] = self._values[source]


class Q8Store:
    """The same in groups of 32 int8 codes with one f16 scale."""

    def __init__(self, shape: tuple[int, int, int, int]) -> None:
        self._codes = np.zeros(shape, dtype=np.int8)
        self._scales = np.zeros((*shape[:-1], shape[-1] // Q8_GROUP), dtype=np.float16)

    @property
    def num_bytes(self) -> int:
        return int(self._codes.nbytes + self._scales.nbytes)

    def write(self, pages: Int32Array, offsets: Int32Array, values: Float32Array) -> None:
        """See `PlainStore.write`."""
        codes, scales = to_q8_0(values)
        self._codes[pages, :, offsets] = codes
        self._scales[pages, :, offsets] = scales

    def read(self, pages: Int32Array, head: int) -> Float32Array:
        """See `PlainStore.read`."""
        values: Float32Array = self._codes[pages, head].astype(np.float32)
        values *= np.repeat(self._scales[pages, head].astype(np.float32), Q8_GROUP, axis=-1)
        return values

    def copy_page(self, source: int, target: int) -> None:
        """See `PlainStore.copy_page`."""
        self._codes[target] = self._codes[source]
        self._scales[target] = self._scales[source]


class ReferenceKvLayer:
    """K and V storage of one owning layer."""

    def __init__(
        self, num_pages: int, page_tokens: int, num_kv_heads: int, head_dim: int, kv_type: KvType
    ) -> None:
        shape = (num_pages, num_kv_heads, page_tokens, head_dim)
        self.page_tokens = page_tokens
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.k: PlainStore | Q8Store
        self.v: PlainStore | Q8Store
        if kv_type == "q8_0":
            if head_dim % Q8_GROUP:
                raise BackendError(
                    f"KV type q8_0 needs heads of a multiple of {Q8_GROUP} values, "
                    f"but this model has heads of {head_dim}"
                )
            self.k, self.v = Q8Store(shape), Q8Store(shape)
        else:
            self.k, self.v = PlainStore(shape, kv_type), PlainStore(shape, kv_type)

    @property
    def num_bytes(self) -> int:
        return self.k.num_bytes + self.v.num_bytes


def row_slots(table: PageTable) -> tuple[Int32Array, Int32Array]:
    """The page id and the token's place in it, for each row."""
    number = table.positions // table.page_tokens
    entry = table.seq_pages[table.row_seq] + number - table.first_page[table.row_seq]
    return table.pages[entry], table.positions % table.page_tokens


@dataclass(slots=True)
class _Partial:
    """Running softmax of some rows: maximum, sum of exponentials, weighted sum of values."""

    peak: Float32Array
    total: Float32Array
    mixed: Float32Array

    def merge(self, peak: Float32Array, total: Float32Array, mixed: Float32Array) -> None:
        """Append the partial of the next segment; an empty one (peak -inf) changes nothing."""
        top = np.maximum(self.peak, peak)
        safe = np.where(np.isneginf(top), np.float32(0.0), top)
        old, new = np.exp(self.peak - safe), np.exp(peak - safe)
        self.peak = top
        self.total = self.total * old + total * new
        self.mixed = self.mixed * old[:, None] + mixed * new[:, None]


def attend(
    out: Float32Array,
    q: Float32Array,
    kv: ReferenceKvLayer,
    table: PageTable,
    window: int | None,
    scale: float,
) -> None:
    """`Ops.attention`: each sequence, K/V head and block of query rows by itself."""
    head_dim, num_kv_heads = kv.head_dim, kv.num_kv_heads
    group = q.shape[1] // (num_kv_heads * head_dim)
    queries = q.reshape(len(q), num_kv_heads, group, head_dim)
    result = out.reshape(queries.shape)
    rows_per_block = max(1, _QUERY_ROWS // group)
    for seq in np.unique(table.row_seq):
        rows = np.flatnonzero(table.row_seq == seq)
        for start in range(0, len(rows), rows_per_block):
            block = rows[start : start + rows_per_block]
            for head in range(num_kv_heads):
                result[block, head] = _attend_block(
                    queries[block, head], kv, table, int(seq), block, head, window, scale
                )


def _attend_block(
    queries: Float32Array,
    kv: ReferenceKvLayer,
    table: PageTable,
    seq: int,
    rows: NDArray[np.intp],
    head: int,
    window: int | None,
    scale: float,
) -> Float32Array:
    """Attention of rows [r, group, head_dim] of one sequence over one K/V head."""
    num_rows, group, head_dim = queries.shape
    padded = max(_QUERY_ROWS, group)
    block = np.zeros((padded, head_dim), dtype=np.float32)
    block[: num_rows * group] = queries.reshape(-1, head_dim)
    position = np.full(padded, -1, dtype=np.int64)
    position[: num_rows * group] = np.repeat(table.positions[rows], group)

    first = 0 if window is None else max(0, int(table.positions[rows].min()) - window + 1)
    last = int(table.positions[rows].max())
    partial = _Partial(
        np.full(padded, -np.inf, dtype=np.float32),
        np.zeros(padded, dtype=np.float32),
        np.zeros((padded, head_dim), dtype=np.float32),
    )
    for segment in range(first // ATTENTION_SEGMENT_TOKENS, last // ATTENTION_SEGMENT_TOKENS + 1):
        keys, values, token = _segment(kv, table, seq, head, segment)
        seen = token <= position[:, None]
        if window is not None:
            seen &= token > position[:, None] - window
        scores = np.where(seen, block @ keys.T * np.float32(scale), np.float32(-np.inf))
        peak = scores.max(axis=1)
        safe = np.where(np.isneginf(peak), np.float32(0.0), peak)
        shares = np.exp(scores - safe[:, None])
        partial.merge(peak, shares.sum(axis=1), shares @ values)
    mixed, total = partial.mixed[: num_rows * group], partial.total[: num_rows * group]
    return (mixed / total[:, None]).reshape(queries.shape)


def _segment(
    kv: ReferenceKvLayer, table: PageTable, seq: int, head: int, segment: int
) -> tuple[Float32Array, Float32Array, NDArray[np.int64]]:
    """K and V [512, head_dim] of one absolute segment, and its positions; 0 where no page is."""
    begin = segment * ATTENTION_SEGMENT_TOKENS
    token = np.arange(begin, begin + ATTENTION_SEGMENT_TOKENS, dtype=np.int64)
    keys = np.zeros((ATTENTION_SEGMENT_TOKENS, kv.head_dim), dtype=np.float32)
    values = np.zeros_like(keys)
    entries = table.pages[table.seq_pages[seq] : table.seq_pages[seq + 1]]
    number = token // table.page_tokens - table.first_page[seq]
    held = (number >= 0) & (number < len(entries))
    if not held.any():
        return keys, values, token
    low, high = int(number[held][0]), int(number[held][-1]) + 1
    offset = token[held] - (low + int(table.first_page[seq])) * table.page_tokens
    pages = entries[low:high]
    keys[held] = kv.k.read(pages, head).reshape(-1, kv.head_dim)[offset]
    values[held] = kv.v.read(pages, head).reshape(-1, kv.head_dim)[offset]
    return keys, values, token
