"""What a running model takes besides weights and K/V, by name, computed from headers.

Sizes are those of the native tables and buffers (csrc/bpe.h, string_table.h, memory.h); what no
header tells of, the program itself, is counted by the system when asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from culet import system
from culet.engine.config import EngineConfig
from culet.formats.checkpoint import Checkpoint
from culet.formats.gguf import GgufCheckpoint
from culet.formats.packed import PackedCheckpoint
from culet.models.config import ModelConfig

_FLOAT_BYTES = 4
_SLOT_BYTES = 8  # of the hash tables of pieces and merges
_STRING_BYTES = 4  # of a string table's index
_HUGE_PAGE_BYTES = 2 << 20
_SLAB_BYTES = 64 << 20
# Of modules and compiled templates that come with the first request: numpy.random, jinja's code.
_FIRST_USE_MAPPED_BYTES = 3 << 20
_FIRST_USE_PRIVATE_BYTES = 3 << 20


@dataclass(frozen=True, slots=True)
class ProgramBytes:
    """The interpreter, its modules and libraries.

    Attributes:
        mapped_bytes: of their files.
        private_bytes: of their own memory.
    """

    mapped_bytes: int
    private_bytes: int

    @classmethod
    def of_this_process(cls) -> ProgramBytes:
        """As counted now, and what the first request adds; zeros where nothing is known."""
        resident, private = system.resident_bytes(), system.anonymous_resident_bytes()
        if resident is None or private is None:
            return cls(0, 0)
        return cls(resident - private + _FIRST_USE_MAPPED_BYTES, private + _FIRST_USE_PRIVATE_BYTES)


def workspace_bytes(config: ModelConfig, engine: EngineConfig) -> int:
    """Buffers of the largest step, a piece of a prompt of which one row is wanted, and logits.

    Counted from what models and ops ask for (models/layers.py, csrc/ops_linear.cpp): all rows go
    through the layers before the last one that owns K/V, whose buffers are there once for each
    width, and leave K and V in that one.
    """
    last = config.last_owning_layer
    run, owning = config.layers[:last], config.layers[: last + 1]
    q = {spec.num_heads * spec.head_dim for spec in run}
    kv = {spec.num_kv_heads * spec.head_dim for spec in owning}
    ffn = {spec.ffn_dim for spec in run}
    angles = {spec.attention: spec.head_dim for spec in config.layers}
    floats = config.hidden_size + 2 * sum(q) + 2 * sum(kv) + sum(ffn)
    floats += sum(angles.values()) + last * config.ple_dim
    # One op's scratch: its product, and its input in int8 with a scale for 32 values.
    scratch = config.hidden_size * _FLOAT_BYTES + max(q | ffn | {config.hidden_size}) * 5 // 4
    rows = min(engine.prefill_tokens, engine.context_length)
    logits = engine.max_seqs * config.vocab_size * _FLOAT_BYTES
    return rows * (floats * _FLOAT_BYTES + scratch) + logits


def rounding_bytes(private: Iterable[int]) -> int:
    """What huge pages add to blocks of these sizes, in the order in which they are allocated.

    Blocks share slabs of 64 MiB; what is touched of a slab is whole huge pages.
    """
    used = total = 0
    for num_bytes in private:
        num_bytes = -(-num_bytes // 64) * 64
        if num_bytes > _SLAB_BYTES // 2:
            continue  # has a mapping of its own, whose end lies on small pages
        if used + num_bytes > _SLAB_BYTES:
            total += -used % _HUGE_PAGE_BYTES
            used = 0
        used += num_bytes
    return total + -used % _HUGE_PAGE_BYTES


def metadata_bytes(checkpoint: Checkpoint) -> tuple[int, int]:
    """Of a file's header: what stays mapped, and the private index of its strings."""
    if isinstance(checkpoint, PackedCheckpoint):
        mapped = checkpoint.header_span.num_bytes
    elif isinstance(checkpoint, GgufCheckpoint):
        mapped = sum(header.num_bytes for _, header in checkpoint.shards)
    else:
        return 0, 0
    strings = (_count(checkpoint.metadata, key) for key in ("tokens", "merges"))
    return mapped, _STRING_BYTES * sum(strings)


def tokenizer_bytes(checkpoint: Checkpoint, config: ModelConfig) -> int:
    """Hash tables of pieces and merges; of a folder about twice as many merges as pieces."""
    num_pieces = _count(checkpoint.metadata, "tokens")
    num_merges = _count(checkpoint.metadata, "merges")
    if checkpoint.kind == "safetensors":
        num_pieces, num_merges = config.vocab_size, 2 * config.vocab_size
    tables = _SLOT_BYTES * (_num_slots(num_pieces) + (_num_slots(num_merges) if num_merges else 0))
    return tables + num_pieces + _FLOAT_BYTES * (num_merges or num_pieces)


def _num_slots(count: int) -> int:
    """At most half full: the power of two that holds twice the count."""
    return 1 << (2 * count + 1).bit_length()


def _count(metadata: Mapping[str, Any], name: str) -> int:
    value = metadata.get(f"tokenizer.ggml.{name}", ())
    return len(value) if hasattr(value, "__len__") and not isinstance(value, str) else 0
