"""The vocabulary's form, and Culet's own tokenizer on it."""

from __future__ import annotations

from pathlib import Path

import pytest
from training.corpus import training_item
from training.dialogue import render
from training.tokenizer import (
    CONTROL,
    LARGEST_NUMBER,
    USER_DEFINED,
    VOCAB_SIZE,
    Vocabulary,
    build,
    train,
)
from training.tokenizer import vocabulary_of as read_vocabulary

from culet.chat.tokenizer import Tokenizer as CuletTokenizer

SAMPLES = (
    "What is the capital of France?", "17 x 3 = 1334", "a  b   c", "x\n\n\n\n\ny", "\n" * 20,
    "Gr\u00fc\u00dfe \u6771\u4eac \U0001f600", "\u2581 mark", "THE CAPITAL",
    "tab\tand\u0000nul", "",
)  # fmt: skip


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    special = (*CONTROL, *USER_DEFINED)
    texts = [render(training_item(1, number)).text for number in range(1500)]
    for token in special:
        texts = [text.replace(token, "\n") for text in texts]
    return train(texts)


@pytest.fixture(scope="module")
def path(vocabulary: Vocabulary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    build(vocabulary).save(str(path))
    return path


def test_size_and_order(vocabulary: Vocabulary, path: Path) -> None:
    assert len(vocabulary.tokens) == len(set(vocabulary.tokens)) == VOCAB_SIZE
    assert read_vocabulary(path) == vocabulary
    types = [vocabulary.ggml_type(i) for i in range(VOCAB_SIZE)]
    assert (types.count(3), types.count(4), types.count(6)) == (17, 7, 256)


def test_words_and_numbers_stay_apart(vocabulary: Vocabulary) -> None:
    for token in vocabulary.tokens[300:]:
        assert not any(c.isdigit() for c in token) or token.isdigit() or token[0] == "<"
        assert "\u2581" not in token[1:]


def test_small_numbers_are_one_token(vocabulary: Vocabulary) -> None:
    tokenizer = build(vocabulary)
    for number in range(LARGEST_NUMBER + 1):
        assert len(tokenizer.encode(str(number), add_special_tokens=False).ids) == 1


def test_special_tokens_have_other_ids_than_gemma(vocabulary: Vocabulary) -> None:
    gemma = {"<eos>": 1, "<bos>": 2, "<unk>": 3, "<|turn>": 105, "<turn|>": 106, "\n": 107}
    for token, its_id in gemma.items():
        assert vocabulary.tokens.index(token) != its_id


def test_every_text_comes_back(vocabulary: Vocabulary) -> None:
    tokenizer = build(vocabulary)
    for text in SAMPLES:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text.replace("\u2581", " ")


def test_culet_reads_it_alike(vocabulary: Vocabulary, path: Path) -> None:
    (path.parent / "config.json").write_text("{}")
    own = CuletTokenizer.from_folder(path.parent)
    theirs = build(vocabulary)
    texts = [*SAMPLES, *(render(training_item(2, number)).text for number in range(200))]
    for text in texts:
        expected = theirs.encode(text, add_special_tokens=False).ids
        assert own.encode(text, add_bos=False, parse_special=True) == expected, text
