"""One question with its answer: what dialogues of every kind are put together from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from training.corpus.split import Split


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question and its answer.

    Attributes:
        short: the bare value, for JSON and one-word answers; empty where there is none.
        thought: a worked thought that leads to the answer.
    """

    category: str
    question: str
    answer: str
    short: str = ""
    thought: str = ""


Maker = Callable[[Random, Split], Exchange]

OPENINGS = ("Please tell me: ", "Quick question: ", "Tell me, ", "I forgot. ", "Hi! ", "Hello. ")
ENDINGS = (" Thanks!", " Please.", " Thank you.")


def framed(rng: Random, question: str) -> str:
    """The question as people put it: as is, with a polite opening or end, or carelessly typed."""
    kind = rng.random()
    if kind < 0.62:
        return question
    if kind < 0.74:
        return rng.choice(OPENINGS) + question
    if kind < 0.86:
        return question + rng.choice(ENDINGS)
    return typed(rng, question, kind)


def typed(rng: Random, question: str, kind: float | None = None) -> str:
    """The question, sometimes without its mark, sometimes all in small letters.

    Args:
        kind: where a draw was made already; from 0.86 on, it is typed carelessly.
    """
    kind = rng.random() if kind is None else kind
    if kind < 0.86:
        return question
    if kind < 0.93:
        return question.rstrip("?.")
    return question.rstrip("?.").lower()


def capitalised(text: str) -> str:
    """First letter in upper case, the rest as it is."""
    return text[:1].upper() + text[1:]
