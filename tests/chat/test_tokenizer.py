"""Ids of the toy vocabularies against `tokenizers` and `sentencepiece`; decoding; BOS."""

from __future__ import annotations

import random
import time

import pytest
import sentencepiece
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from culet.chat.prompt import Prompt
from culet.chat.tokenizer import Tokenizer
from culet.errors import RequestError
from support.toy_vocabularies import (
    GEMMA3_CONTROL,
    GEMMA4_CONTROL,
    gemma4_oracle,
    gemma4_tables,
    odd_texts,
    with_bad_bytes,
)

NUM_TEXTS = 3000


def test_ranked_ids_of_plain_text(gemma4: Tokenizer, oracle4: tokenizers.Tokenizer) -> None:
    for text in odd_texts(NUM_TEXTS, 1, GEMMA4_CONTROL):
        assert gemma4.encode(text, add_bos=False) == oracle4.encode(text).ids, repr(text)


def test_ranked_ids_with_control_tokens(gemma4: Tokenizer) -> None:
    oracle = gemma4_oracle(*gemma4_tables(), GEMMA4_CONTROL)
    for text in odd_texts(NUM_TEXTS, 2, GEMMA4_CONTROL):
        ids = gemma4.encode(text, add_bos=False, parse_special=True)
        expected = oracle.encode(text, add_special_tokens=False).ids
        assert ids == expected, repr(text)


def test_scored_ids(gemma3: Tokenizer, pieces3: sentencepiece.SentencePieceProcessor) -> None:
    for text in odd_texts(NUM_TEXTS, 3, GEMMA3_CONTROL):
        assert gemma3.encode(text, add_bos=False) == pieces3.EncodeAsIds(text), repr(text)


def test_runs_of_white_space(
    gemma3: Tokenizer,
    pieces3: sentencepiece.SentencePieceProcessor,
    gemma4: Tokenizer,
    oracle4: tokenizers.Tokenizer,
) -> None:
    for character in ("\n", " ", "\t", "\r\n"):
        for count in range(1, 41):
            run = character * count
            for text in (run, f"a{run}b", f"{run}b", f"a{run} {run}"):
                assert gemma3.encode(text, add_bos=False) == pieces3.EncodeAsIds(text), repr(text)
                expected = oracle4.encode(text).ids
                assert gemma4.encode(text, add_bos=False) == expected, repr(text)


@pytest.mark.parametrize("kind", ["gemma3", "gemma4"])
def test_bytes_that_are_no_text_become_byte_tokens(
    kind: str, request: pytest.FixtureRequest
) -> None:
    ours: Tokenizer = request.getfixturevalue(kind)
    rng = random.Random(4)
    for text in odd_texts(200, 5, ("x",)):
        text = text.replace("\u2581", "")
        chunks = with_bad_bytes(text, rng)
        expected: list[int] = []
        for index, chunk in enumerate(chunks):
            if index % 2 == 0:
                expected += ours.encode(chunk.decode(), add_bos=False)
            else:
                expected += [ours.id_of(f"<0x{b:02X}>") or -1 for b in chunk]
        ids = ours.encode(b"".join(chunks), add_bos=False)
        assert ids == expected
        assert b"".join(map(ours.token_bytes, ids)) == b"".join(chunks)


def test_lone_surrogates_become_byte_tokens(gemma4: Tokenizer) -> None:
    ids = gemma4.encode("a\ud800b", add_bos=False)
    assert b"".join(map(gemma4.token_bytes, ids)) == b"a\xed\xa0\x80b"
    assert gemma4.decode(ids) == "a\ufffd\ufffd\ufffdb"


@pytest.mark.parametrize("kind", ["gemma3", "gemma4"])
def test_text_never_becomes_a_control_token(kind: str, request: pytest.FixtureRequest) -> None:
    ours: Tokenizer = request.getfixturevalue(kind)
    for spelled in ours.control_tokens.values():
        for text in (spelled, f"a{spelled}b", f" {spelled}\n", spelled * 2):
            ids = ours.encode(text, add_bos=False)
            assert not any(ours.is_control(i) for i in ids)
            assert ours.decode(ids) == text


def test_decode_returns_the_text(gemma3: Tokenizer, gemma4: Tokenizer) -> None:
    for ours in (gemma3, gemma4):
        for text in odd_texts(500, 6, GEMMA4_CONTROL):
            text = text.replace("\u2581", " ")  # the same to the model
            assert ours.decode(ours.encode(text)) == text


def test_decode_hides_control_tokens_unless_asked(gemma4: Tokenizer) -> None:
    ids = gemma4.encode("<|turn>user\nhi<turn|>", parse_special=True)
    assert gemma4.decode(ids) == "user\nhi"
    assert gemma4.decode(ids, skip_special=False) == "<bos><|turn>user\nhi<turn|>"


@pytest.mark.parametrize("text", ["", "hi", "<bos>hi", "<bos><bos>hi"])
def test_bos_is_there_exactly_once(gemma4: Tokenizer, text: str) -> None:
    ids = gemma4.encode(text, parse_special=True)
    assert ids[0] == gemma4.bos_id
    assert ids.count(gemma4.bos_id) == 1
    assert gemma4.encode_prompt(Prompt.join([(text, True)])) == ids


def test_bos_is_left_out_on_demand(gemma4: Tokenizer) -> None:
    assert gemma4.encode("", add_bos=False) == []
    assert gemma4.bos_id not in gemma4.encode("hi", add_bos=False)


def test_ids_that_do_not_exist_are_refused(gemma4: Tokenizer) -> None:
    for token_id in (-1, gemma4.vocab_size):
        with pytest.raises(RequestError, match=str(token_id)):
            gemma4.decode([token_id])


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_streamed_text_is_the_decoded_text(gemma4: Tokenizer, data: st.DataObject) -> None:
    token_id = st.integers(0, gemma4.vocab_size - 1) | st.sampled_from(
        [gemma4.id_of(f"<0x{b:02X}>") or 0 for b in (0x41, 0x80, 0xC3, 0xA9, 0xE2, 0x96, 0xF0)]
    )
    ids = data.draw(st.lists(token_id, max_size=20))
    skip = data.draw(st.booleans())
    stream = gemma4.stream_decoder(skip)
    shown, all_bytes = "", b""
    for number, i in enumerate(ids):
        shown += stream.push(i)
        if not (skip and gemma4.is_control(i)):
            all_bytes += gemma4.token_bytes(i)
        complete = all_bytes.decode("utf-8", "ignore")
        if "\ufffd" not in all_bytes.decode("utf-8", "replace"):
            assert shown == complete
        # What is not shown yet is at most one character that has not ended: up to 3 bytes.
        assert len(gemma4.decode(ids[: number + 1], skip)) - len(shown) <= 3
    assert shown + stream.finish() == gemma4.decode(ids, skip)


def test_no_replacement_while_a_character_is_incomplete(gemma4: Tokenizer) -> None:
    stream = gemma4.stream_decoder()
    shown = [stream.push(gemma4.id_of(f"<0x{b:02X}>") or 0) for b in "é🙂".encode()]
    assert shown == ["", "é", "", "", "", "🙂"]
    assert stream.finish() == ""


@pytest.mark.parametrize("text", ["a", "\n", " ", "<", "the ", "漢", "\x00"])
def test_long_words_take_no_quadratic_time(gemma4: Tokenizer, text: str) -> None:
    def seconds(size: int) -> float:
        long_text = text * (size // len(text))
        start = time.process_time()
        ids = gemma4.encode(long_text, parse_special=True)
        took = time.process_time() - start
        assert gemma4.decode(ids) == long_text
        return took

    # 200 kB in a second is the promise; the time of quadratic work would be minutes.
    assert seconds(200_000) < 1.0
