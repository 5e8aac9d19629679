"""The toy vocabularies of both families: ours, and the libraries they are compared with."""

from __future__ import annotations

import pytest
import sentencepiece
import tokenizers

from culet.chat.tokenizer import Tokenizer
from support.toy_vocabularies import (
    gemma3_metadata,
    gemma3_oracle,
    gemma4_metadata,
    gemma4_oracle,
    gemma4_tables,
)


@pytest.fixture(scope="session")
def gemma4() -> Tokenizer:
    return Tokenizer.from_gguf(gemma4_metadata())


@pytest.fixture(scope="session")
def oracle4() -> tokenizers.Tokenizer:
    """Without control tokens."""
    return gemma4_oracle(*gemma4_tables())


@pytest.fixture(scope="session")
def pieces3() -> sentencepiece.SentencePieceProcessor:
    return gemma3_oracle()


@pytest.fixture(scope="session")
def gemma3(pieces3: sentencepiece.SentencePieceProcessor) -> Tokenizer:
    return Tokenizer.from_gguf(gemma3_metadata(pieces3))
