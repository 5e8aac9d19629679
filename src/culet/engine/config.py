"""Settings of an engine. Frozen; checked where they are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from culet.errors import UsageError
from culet.ops.interface import ATTENTION_SEGMENT_TOKENS, KvType


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How much an engine holds and how it cuts its work.

    Attributes:
        context_length: tokens of a sequence, prompt and answer together.
        max_seqs: sequences whose K/V the cache has room for at once.
        prefill_tokens: prompt tokens of one step.
        page_tokens: tokens of a cache page; a power of two that divides 512.
    """

    context_length: int
    max_seqs: int = 1
    prefill_tokens: int = 512
    page_tokens: int = 64
    kv_type: KvType = "f16"

    def __post_init__(self) -> None:
        for name in ("context_length", "max_seqs", "prefill_tokens", "page_tokens"):
            value = getattr(self, name)
            if value < 1:
                raise UsageError(f"{name} is {value}; at least 1 is needed")
        if self.kv_type not in get_args(KvType):
            raise UsageError(
                f"kv_type {self.kv_type!r} does not exist; there are {', '.join(get_args(KvType))}"
            )
        if ATTENTION_SEGMENT_TOKENS % self.page_tokens:
            raise UsageError(
                f"page_tokens is {self.page_tokens}; a divisor of {ATTENTION_SEGMENT_TOKENS} "
                "is needed"
            )
