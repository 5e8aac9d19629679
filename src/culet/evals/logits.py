"""Greedy answers of one checkpoint, judged by another: the same model in another form.

Three runs over the same tokens: ours, the reference as it is served, and the reference's weights
with fp32 activations, which say who is right where the two disagree.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from culet.engine.request import EnginePrompt, SamplingParams
from culet.engine.scheduler import Want
from culet.errors import UsageError
from culet.evals.divergence import Comparison, compare_rows
from culet.llm.facade import LLM

# Loads a model; three are needed, one after another, so that one at a time is in memory.
Load = Callable[[], LLM]


@dataclass(frozen=True, slots=True)
class Answer:
    """A prompt and what our engine answers greedily, both as token ids."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """An answer, how it compares, and the spellings of the candidates where engines differ."""

    text: str
    comparison: Comparison
    pieces: dict[int, str]


def compare_logits(
    load_ours: Load,
    load_theirs: Load,
    load_exact: Load,
    prompts: Sequence[str],
    num_tokens: int,
) -> list[JudgedAnswer]:
    """Compare greedy answers of `num_tokens` tokens to each prompt, row by row.

    All engines see our answer's tokens, so each row is compared in one context.

    Raises:
        UsageError: the two have different vocabularies.
        CuletError: whatever loading or running raises.
    """
    with load_ours() as llm:
        answers = [_greedy(llm, prompt, num_tokens) for prompt in prompts]
        texts = [llm.tokenizer.decode(a.tokens, skip_special=False) for a in answers]
        vocab_size = llm.tokenizer.vocab_size
        ours = [_rows(llm, answer) for answer in answers]
    with load_theirs() as llm:
        if llm.tokenizer.vocab_size != vocab_size:
            raise UsageError(
                f"the reference has {llm.tokenizer.vocab_size} tokens and the model {vocab_size}: "
                "they are not the same model"
            )
        theirs = [_rows(llm, answer) for answer in answers]
    judged = []
    with load_exact() as llm:
        for answer, text, a, b in zip(answers, texts, ours, theirs, strict=True):
            exact = _rows(llm, answer)
            # Tables may be padded past the vocabulary.
            comparison = compare_rows(*(rows[:, :vocab_size] for rows in (a, b, exact)))
            ids = {i for d in comparison.differences for i in (d.ours, d.theirs, d.exact_choice)}
            pieces = {
                i: llm.tokenizer.token_bytes(i).decode("utf-8", "replace") for i in sorted(ids)
            }
            judged.append(JudgedAnswer(text, comparison, pieces))
    return judged


def _greedy(llm: LLM, prompt: str, num_tokens: int) -> Answer:
    ids = llm.tokenizer.encode(prompt, add_bos=True, parse_special=True)
    found = llm.generate(
        prompt, max_tokens=num_tokens, temperature=0, ignore_eos=True, parse_special=True
    )
    return Answer(tuple(ids), tuple(found.token_ids))


def _rows(llm: LLM, answer: Answer) -> NDArray[np.float32]:
    """Logits [len(answer.tokens), vocab] of the rows that predict the answer's tokens.

    They lie in an unnamed temporary file: a row of a real vocabulary has a megabyte.
    """
    first, count = len(answer.prompt) - 1, len(answer.tokens)
    rows: list[NDArray[np.float32]] = []
    ids = [*answer.prompt, *answer.tokens[:-1]]

    def take(position: int, found: NDArray[np.float32]) -> None:
        if position + len(found) > first:
            rows.append(_on_disk(found[max(0, first - position) :]))

    handle = llm.engine.submit(
        EnginePrompt(ids), SamplingParams(max_tokens=0), prompt_want=Want.LOGITS, sink=take
    )
    handle.result()
    logits = rows[0] if len(rows) == 1 else np.concatenate(rows)
    assert len(logits) == count, "one row for each token of the answer"
    return logits


def _on_disk(values: NDArray[np.float32]) -> NDArray[np.float32]:
    with tempfile.TemporaryFile() as file:
        copy = np.memmap(file, dtype=np.float32, mode="w+", shape=values.shape)
    copy[:] = values
    return copy


def differing(judged: Sequence[JudgedAnswer]) -> Iterator[tuple[int, JudgedAnswer]]:
    """The answers that are not the same, with their index."""
    return ((i, j) for i, j in enumerate(judged) if j.comparison.verdict != "same")
