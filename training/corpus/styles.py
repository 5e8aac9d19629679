"""What surrounds exchanges: system turns that are obeyed, thinking, questions in pairs, chats."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random

from training.corpus.exchange import Exchange, Maker
from training.corpus.split import Split
from training.dialogue import Dialogue, Turn

_CAPITALS = ("Answer in capitals.", "Answer in capital letters.", "Write in capitals only.",
             "Always answer in capitals.", "Use only capital letters.")  # fmt: skip
_JSON = ("Answer in JSON.", "Reply in JSON.", "Always answer in JSON.", "Answer with JSON only.",
         "Give your answer as JSON.")  # fmt: skip
_SHORT = ("Answer with one word.", "Answer briefly.", "Give short answers.", "Be brief.",
          "Answer as briefly as you can.")  # fmt: skip
_NEUTRAL = ("You are a helpful assistant.", "You are helpful.", "Help the user.",
            "You are a friendly assistant.", "Answer the question.")  # fmt: skip
_JOINS = ("{one} And {two}", "{one} Also: {two}", "{one} {Two}", "{one} Then {two}",
          "{one} Also, {two}", "{one} And also {two}")  # fmt: skip
# Words that open questions and are no names: written small in the middle of a sentence.
_OPENERS = {
    "What", "What's", "Which", "Name", "Tell", "Count", "How", "Give", "Do", "Can", "Calculate",
    "Please", "List", "Write", "Say", "Translate", "Compute", "Solve",
}  # fmt: skip


def _capitals(exchange: Exchange) -> str:
    return exchange.answer.upper()


def _json(exchange: Exchange) -> str:
    short = exchange.short
    value = int(short) if short.isdigit() else short
    return json.dumps({"answer": value}, ensure_ascii=False)


def _short(exchange: Exchange) -> str:
    return exchange.short


def _plain(exchange: Exchange) -> str:
    return exchange.answer


STYLES: dict[str, tuple[Sequence[str], Callable[[Exchange], str], float]] = {
    "capitals": (_CAPITALS, _capitals, 1.4),
    "JSON": (_JSON, _json, 1.0),
    "short": (_SHORT, _short, 0.8),
    "neutral": (_NEUTRAL, _plain, 0.8),
}


def with_short(rng: Random, split: Split, makers: Sequence[Maker]) -> Exchange:
    """An exchange that has a bare value."""
    while True:
        exchange = rng.choice(makers)(rng, split)
        if exchange.short:
            return exchange


def system_styled(rng: Random, split: Split, makers: Sequence[Maker]) -> tuple[str, Dialogue]:
    """A system turn with a visible effect; its wordings are all trained, the questions split."""
    names = list(STYLES)
    name = rng.choices(names, [STYLES[n][2] for n in names])[0]
    texts, write, _ = STYLES[name]
    count = 1 if split == "heldout" else rng.randint(1, 2)
    exchanges = [with_short(rng, split, makers) for _ in range(count)]
    turns = tuple(Turn(e.question, write(e)) for e in exchanges)
    return f"system: {name}", Dialogue(turns, system=rng.choice(texts))


def thinking(rng: Random, split: Split, makers: Sequence[Maker]) -> tuple[str, Dialogue]:
    while True:
        exchange = rng.choice(makers)(rng, split)
        if exchange.thought:
            break
    system = rng.choice(_NEUTRAL) if rng.random() < 0.3 else None
    turn = Turn(exchange.question, exchange.answer, thought=exchange.thought)
    before: tuple[Turn, ...] = ()
    if split == "train" and rng.random() < 0.25:
        first = rng.choice(makers)(rng, split)
        # As read back by a later turn: its thought is gone, so it teaches nothing about thinking.
        before = (Turn(first.question, first.answer, trained=False),)
    return "thinking", Dialogue((*before, turn), system=system, thinking=True)


def paired(rng: Random, split: Split, makers: Sequence[Maker]) -> tuple[str, Dialogue]:
    """Two questions in one turn: both answers, in order."""
    one, two = (rng.choice(makers)(rng, split) for _ in range(2))
    first = one.question if one.question.endswith((".", "?", "!")) else one.question + "."
    opener = two.question.split(" ")[0]
    small = two.question[0].lower() + two.question[1:] if opener in _OPENERS else two.question
    question = rng.choice(_JOINS).format(one=first, two=small, Two=two.question)
    middle = " " if one.answer.endswith((".", "!")) else ". "
    return "two in one", Dialogue((Turn(question, one.answer + middle + two.answer),))


def chat(rng: Random, split: Split, makers: Sequence[Maker]) -> tuple[str, Dialogue]:
    """Independent questions, one after another; evaluated by the last."""
    exchanges = [rng.choice(makers)(rng, split) for _ in range(rng.randint(2, 5))]
    system = rng.choice(_NEUTRAL) if rng.random() < 0.2 else None
    turns = tuple(Turn(e.question, e.answer) for e in exchanges)
    return "chat", Dialogue(turns, system=system)
