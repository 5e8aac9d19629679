"""Settings of an engine. Frozen; checked where they are made."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import get_args

from culet.errors import UsageError
from culet.ops.interface import ATTENTION_SEGMENT_TOKENS, KvType


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How much an engine holds and how it cuts its work.

    Attributes:
        context_length: tokens of a sequence, prompt and answer together.
        max_seqs: sequences that run at once.
        prefill_tokens: rows of one step at most.
        mixed_prefill_tokens: prompt rows at most in a step that also has running streams: it bounds
            how long a stream waits for its next token because of somebody's prompt.
        page_tokens: tokens of a cache page; a divisor of 512.
        kv_bytes: what K and V may take; None for as much as `max_seqs` sequences of
            `context_length` tokens and their kept windows need.
        prefix_cache: keep computed prompts and answers for later requests that begin alike.
        max_waiting: sequences that may wait; more are refused.
    """

    context_length: int
    max_seqs: int = 16
    prefill_tokens: int = 512
    mixed_prefill_tokens: int = 128
    page_tokens: int = 64
    kv_type: KvType = "f16"
    kv_bytes: int | None = None
    prefix_cache: bool = True
    max_waiting: int = 1024

    def __post_init__(self) -> None:
        for name in (
            "context_length",
            "max_seqs",
            "prefill_tokens",
            "mixed_prefill_tokens",
            "page_tokens",
            "max_waiting",
        ):
            value = getattr(self, name)
            if not isinstance(value, Integral):
                raise UsageError(f"{name} is {value!r}; a whole number is needed")
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
