"""A real `Tokenizer` over a vocabulary of a few hundred pieces, quick to build."""

from __future__ import annotations

from functools import cache
from typing import Any

from culet.chat.tokenizer import Tokenizer

CONTROL = [
    "<pad>",
    "<eos>",
    "<bos>",
    "<unk>",
    "<|tool>",
    "<tool|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    '<|"|>',
    "<|think|>",
    "<|channel>",
    "<channel|>",
    "<|turn>",
    "<turn|>",
]
_WORDS = ["the", "call", ":", "{", "}", '"', ",", "ation", "▁a", "▁b", "thought", "true", "null"]


def tiny_metadata() -> dict[str, Any]:
    """GGUF metadata of a Gemma 4 style tokenizer: bytes, ASCII, a few longer pieces."""
    single = [chr(c) for c in range(33, 127)] + ["▁", "\n", "é", "ü", "日", "本", "😀"]
    longer = [w for w in _WORDS if len(w) > 1]
    pieces = [*CONTROL, *(f"<0x{b:02X}>" for b in range(256)), *single]
    merges: list[str] = []
    for word in longer:
        for end in range(2, len(word) + 1):
            if word[:end] not in pieces:
                pieces.append(word[:end])
                merges.append(f"{word[: end - 1]} {word[end - 1]}")
    types = [3] * len(CONTROL) + [6] * 256 + [1] * (len(pieces) - len(CONTROL) - 256)
    return {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.pre": "gemma4",
        "tokenizer.ggml.tokens": [p.encode() for p in pieces],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [m.encode() for m in merges],
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
    }


@cache
def tiny_tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(tiny_metadata(), "tiny")
