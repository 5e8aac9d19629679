"""Log-probabilities that a loaded model gives to texts: perplexity and multiple choice."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from culet.engine.request import EnginePrompt, SamplingParams
from culet.engine.scheduler import Want
from culet.errors import UsageError
from culet.evals.divergence import log_softmax
from culet.llm.facade import LLM


@dataclass(frozen=True, slots=True)
class Perplexity:
    """The result of `perplexity`.

    Attributes:
        nats: mean negative log-likelihood of a scored token.
        error: standard error of the perplexity, tokens taken as independent.
    """

    num_chunks: int
    num_scored: int
    nats: float
    error: float

    @property
    def value(self) -> float:
        return math.exp(self.nats)


@dataclass(frozen=True, slots=True)
class Question:
    """One multiple-choice question; `answer` is the index of the right choice."""

    prompt: str
    choices: tuple[str, ...]
    answer: int


@dataclass(frozen=True, slots=True)
class ChoiceScore:
    """How a model answers one question.

    Attributes:
        log_likelihoods: of each choice, after the prompt.
        picked: the most likely choice.
        picked_by_byte: the most likely one by the mean over its UTF-8 bytes.
    """

    log_likelihoods: tuple[float, ...]
    picked: int
    picked_by_byte: int


def perplexity(llm: LLM, text: str, num_ctx: int, max_chunks: int | None = None) -> Iterator[float]:
    """Negative log-likelihoods of the scored tokens, chunk after chunk.

    The convention is llama-perplexity's, so that figures can be compared: the text is encoded as a
    whole, BOS first, and cut into chunks of `num_ctx` tokens; what is left over is dropped; each
    chunk's first token is replaced by BOS; the second half of each chunk is scored.

    Raises:
        UsageError: the text is shorter than one chunk, or a chunk than 4 tokens.
    """
    if num_ctx < 4:
        raise UsageError(f"chunks of {num_ctx} tokens are too small; 4 are the least")
    ids = llm.tokenizer.encode(text, add_bos=True)
    num_chunks = len(ids) // num_ctx
    if num_chunks < 1:
        raise UsageError(f"the text has {len(ids)} tokens, fewer than one chunk of {num_ctx}")
    first = num_ctx // 2
    for chunk in range(min(num_chunks, max_chunks or num_chunks)):
        tokens = [llm.tokenizer.bos_id, *ids[chunk * num_ctx + 1 : (chunk + 1) * num_ctx]]
        yield from (-x for x in token_log_probs(llm, tokens, first))


def summarize(nats: Sequence[float], num_ctx: int) -> Perplexity:
    """The perplexity of tokens with these negative log-likelihoods."""
    values = np.asarray(nats)
    mean = float(values.mean())
    deviation = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    error = math.exp(mean) * deviation / math.sqrt(len(values))
    per_chunk = num_ctx - num_ctx // 2 - 1
    return Perplexity(len(values) // per_chunk, len(values), mean, error)


def token_log_probs(llm: LLM, ids: Sequence[int], first: int = 0) -> NDArray[np.float64]:
    """Log-probability of each of `ids[first + 1:]`, given the ids before it."""
    found: dict[int, float] = {}

    def take(position: int, rows: NDArray[np.float32]) -> None:
        for index, row in enumerate(rows, position):
            if first <= index < len(ids) - 1:
                found[index] = float(log_softmax(row)[ids[index + 1]])

    handle = llm.engine.submit(
        EnginePrompt(ids), SamplingParams(max_tokens=0), prompt_want=Want.LOGITS, sink=take
    )
    handle.result()
    return np.array([found[i] for i in range(first, len(ids) - 1)])


def score_choices(llm: LLM, question: Question) -> ChoiceScore:
    """Log-likelihood of each choice as a continuation of the prompt.

    As in lm-eval, a choice's tokens are those that prompt and choice encoded together have beyond
    the prompt's own number, and they follow the prompt's own tokens.
    """
    context = llm.tokenizer.encode(question.prompt, add_bos=True)
    scores = []
    for choice in question.choices:
        whole = llm.tokenizer.encode(question.prompt + choice, add_bos=True)
        begin = min(len(context), len(whole) - 1)
        ids = context[:begin] + whole[begin:]
        scores.append(float(token_log_probs(llm, ids, begin - 1).sum()))
    by_byte = [s / max(1, len(c.encode())) for s, c in zip(scores, question.choices, strict=True)]
    return ChoiceScore(tuple(scores), int(np.argmax(scores)), int(np.argmax(by_byte)))


def read_questions(path: Path) -> list[Question]:
    """Questions of a JSONL file: objects with `prompt`, `choices` and `answer` (an index).

    Raises:
        UsageError: a line isn't one.
    """
    questions = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            questions.append(_question(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{path}: line {number} is no question with prompt, choices and the index of the "
                f"answer ({error})"
            ) from error
    if not questions:
        raise UsageError(f"{path}: holds no questions")
    return questions


def read_text(path: Path) -> str:
    """A UTF-8 text file; `UsageError` if it can't be read as one."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: can't be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not UTF-8 (byte {error.start})") from error


def _question(value: Any) -> Question:
    prompt, choices, answer = value["prompt"], value["choices"], value["answer"]
    texts = isinstance(prompt, str) and isinstance(choices, list)
    if not texts or not all(isinstance(c, str) and c for c in choices) or len(choices) < 2:
        raise ValueError("prompt must be a text, choices two or more of them")
    if type(answer) is not int or not 0 <= answer < len(choices):
        raise ValueError(f"answer is {answer!r}, must be 0 to {len(choices) - 1}")
    return Question(prompt, tuple(choices), answer)
