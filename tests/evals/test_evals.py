"""The comparisons and evaluations through their commands, on tiny models."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import culet
from culet.cli.main import main
from culet.evals.odd_texts import odd_texts
from culet.evals.scoring import Question, perplexity, score_choices, summarize
from culet.formats.gguf_writer import write_gguf
from culet.formats.opening import open_checkpoint

TEXT = "the fox and a dog, def f(x): return x; " * 12
ENGINE = ("--backend", "reference", "--json")


def run_json(
    words: list[str], capsys: pytest.CaptureFixture[str], code: int = 0
) -> tuple[dict[str, Any], str]:
    """The object for scripts, and what people see beside it."""
    assert main(words) == code
    said = capsys.readouterr()
    return json.loads(said.out), said.err


# ---- tokens --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tokenizer.json of the vocabulary that `model_path` has."""
    from support.toy_vocabularies import GEMMA4_CONTROL, gemma4_oracle, gemma4_tables

    folder = tmp_path_factory.mktemp("tokenizer")
    gemma4_oracle(*gemma4_tables(), GEMMA4_CONTROL).save(str(folder / "tokenizer.json"))
    return folder


def test_the_same_vocabulary_gives_the_same_ids(
    model_path: Path, tokenizer_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for reference in (tokenizer_folder, tokenizer_folder / "tokenizer.json"):
        words = ["compare", "tokens", str(model_path), "--with", str(reference), "--json"]
        found, _ = run_json(words, capsys)
        assert found["differences"] == []
        assert found["texts"] == len(odd_texts()) > 150
        assert found["reference"].startswith("tokenizers ")


def test_another_vocabulary_is_told_text_by_text(
    model_path: Path, tokenizer_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads((tokenizer_folder / "tokenizer.json").read_text())
    # Without merges of newline runs, as some converters leave them.
    merges = content["model"]["merges"]
    content["model"]["merges"] = [m for m in merges if "\n" not in "".join(m)]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "my\\n\\ntext"}\n\n{"text": "plain"}\n')
    words = ["compare", "tokens", str(model_path), "--with", str(tmp_path)]
    found, out = run_json([*words, "--texts", str(texts), "--json"], capsys, code=1)
    names = {d["text_name"] for d in found["differences"]}
    assert {"2 newlines", "texts.jsonl:1"} <= names
    assert not names & {"1 newlines", "3 spaces", "texts.jsonl:3"}
    assert "texts.jsonl:1: from token" in out or "more" in out


def test_texts_that_are_no_texts(
    model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.jsonl"
    words = ["compare", "tokens", str(model_path), "--with", str(model_path), "--texts", str(bad)]
    for content, expected in ((b"{}", "line 1"), (b"\xff", "UTF-8"), (b"", "no texts")):
        bad.write_bytes(content)
        assert main(words) == 2
        assert expected in capsys.readouterr().err


# ---- logits --------------------------------------------------------------------------------------


def test_a_model_and_itself_are_the_same(
    model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", "logits", str(model_path), "--with", str(model_path), "-n", "6", *ENGINE]
    found, out = run_json(words, capsys)
    assert found["verdicts"] == {"same": 6}
    assert all(kl["largest"] == 0 for kl in found["kl"].values())
    assert "6 answers: 6 same, 0 near-tie, 0 different" in out


def test_a_damaged_model_is_told(
    model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of the token table scaled: the file is sound and the answers are wrong."""
    checkpoint = open_checkpoint(model_path)
    tensors = {name: checkpoint.tensor(name) for name in checkpoint.tensor_names()}
    table = tensors["token_embd.weight"]
    values = table.data.view(np.float32).copy()
    values[::2] *= np.float32(1.3)
    tensors["token_embd.weight"] = replace(table, data=values.view(np.uint8))
    damaged = tmp_path / "damaged.gguf"
    write_gguf(damaged, checkpoint.metadata, list(tensors.values()))
    words = ["compare", "logits", str(damaged), "--with", str(model_path), "-n", "8", *ENGINE]
    code = main(words)
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert found["verdicts"].get("same", 0) < 6
    assert code == (1 if found["verdicts"].get("different") else 0)
    assert "verdicts say little" in said.err
    assert found["kl"]["of the reference from fp32"]["largest"] == 0
    for d in (d for p in found["prompts"] for d in p["differences"]):
        assert d["our_margin"] > 0 > d["their_margin"]
        assert d["their_margin"] == d["exact_margin"] and d["their_error"] == 0


# ---- perplexity and choice -----------------------------------------------------------------------


def test_perplexity_is_what_the_logits_say(
    model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "text.txt"
    data.write_text(TEXT)
    words = ["eval", "ppl", str(model_path), "--data", str(data), "--ctx", "32", *ENGINE]
    found, _ = run_json(words, capsys)
    with culet.load(model_path, backend="reference") as llm:
        ids = llm.tokenizer.encode(TEXT, add_bos=True)
        nats = []
        for begin in range(0, len(ids) // 32 * 32, 32):
            chunk = [llm.tokenizer.bos_id, *ids[begin + 1 : begin + 32]]
            logits = llm.logits(chunk).astype(np.float64)
            logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
            nats += [-logs[i, chunk[i + 1]] for i in range(16, 31)]
        assert found["chunks"] == len(ids) // 32 > 2
        assert found["scored_tokens"] == len(nats)
        assert found["nats"] == pytest.approx(np.mean(nats), rel=1e-9)
        assert found["perplexity"] == pytest.approx(np.exp(np.mean(nats)), rel=1e-9)
        one = summarize(list(perplexity(llm, TEXT, 32, 1)), 32)
        assert one.num_chunks == 1 and one.nats == pytest.approx(np.mean(nats[:15]))


def test_a_text_too_short_for_a_chunk(
    model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "text.txt"
    data.write_text("a")
    words = ["eval", "ppl", str(model_path), "--data", str(data), "--ctx", "32", *ENGINE]
    assert main(words) == 2
    assert "fewer than one chunk of 32" in capsys.readouterr().err


def test_choices_are_scored_by_likelihood(
    model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    question = Question("the fox", (" and", " jumps over a lazy dog", "\n"), 0)
    with culet.load(model_path, backend="reference") as llm:
        score = score_choices(llm, question)
        for choice, found in zip(question.choices, score.log_likelihoods, strict=True):
            context = llm.tokenizer.encode(question.prompt)
            whole = llm.tokenizer.encode(question.prompt + choice)
            whole[: len(context)] = context
            logits = llm.logits(whole).astype(np.float64)
            logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
            expected = sum(logs[i - 1, whole[i]] for i in range(len(context), len(whole)))
            assert found == pytest.approx(expected, rel=1e-9)
    data = tmp_path / "questions.jsonl"
    line = {"prompt": question.prompt, "choices": question.choices, "answer": score.picked}
    wrong = line | {"answer": (score.picked + 1) % 3}
    data.write_text("\n".join(json.dumps(x) for x in (line, line, wrong, line)))
    found_json, _ = run_json(
        ["eval", "choice", str(model_path), "--data", str(data), *ENGINE], capsys
    )
    assert found_json["accuracy"] == 0.75


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"prompt": "a", "choices": ["b"], "answer": 0}',
        '{"prompt": "a", "choices": ["b", "c"], "answer": 2}',
        '{"prompt": "a", "choices": ["b", ""], "answer": 0}',
        '{"choices": ["b", "c"], "answer": 0}',
    ],
)
def test_lines_that_are_no_questions(
    model_path: Path, tmp_path: Path, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "questions.jsonl"
    data.write_text(line)
    assert main(["eval", "choice", str(model_path), "--data", str(data), *ENGINE]) == 2
    assert "line 1 is no question" in capsys.readouterr().err
