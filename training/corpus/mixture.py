"""How often each kind of text comes, and the items of training and evaluation by number."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from training.corpus import facts, recall, styles, words
from training.corpus.arithmetic import arithmetic, counting
from training.corpus.exchange import Exchange, Maker
from training.corpus.smalltalk import smalltalk
from training.corpus.split import Split
from training.corpus.stories import statements, story
from training.corpus.tools import tool_call, tool_unused
from training.corpus.truth import truth
from training.dialogue import Dialogue, Story, Turn

Kind = Callable[[Random, Split], tuple[str, Dialogue]]

_TABLES: tuple[Maker, ...] = (
    facts.capital, facts.symbol, facts.planet, facts.month, facts.colour, facts.opposite,
    facts.greeting,
)  # fmt: skip
_ALGORITHMS: tuple[Maker, ...] = (
    arithmetic, counting, words.spelling, words.sorting, words.copying, truth,
)  # fmt: skip
_VALUED: tuple[Maker, ...] = (*_TABLES, arithmetic)
_ALL: tuple[Maker, ...] = (*_TABLES, *_ALGORITHMS, arithmetic, smalltalk)

# Single questions, by weight: what is large or hard to learn comes more often.
_SINGLE: tuple[tuple[Maker, float], ...] = (
    (facts.capital, 2), (facts.symbol, 2), (facts.planet, 1), (facts.month, 2),
    (facts.colour, 1), (facts.opposite, 1), (facts.greeting, 1), (arithmetic, 14),
    (counting, 6), (words.spelling, 10), (words.sorting, 7), (words.copying, 1), (truth, 4),
    (smalltalk, 2),
)  # fmt: skip
# In the second stage: more of what has the most phrasings, and of reversing; in the third, of what
# was still weak.
_SINGLE_LATER: dict[Split, dict[Maker, float]] = {
    "wide": {facts.symbol: 4, facts.month: 4, words.spelling: 14, truth: 12, smalltalk: 7},
    "last": {facts.symbol: 5, facts.colour: 5, words.spelling: 16},
}


def _single(rng: Random, split: Split) -> tuple[str, Dialogue]:
    weights = dict(_SINGLE) | _SINGLE_LATER.get(split, {})
    (maker,) = rng.choices(list(weights), list(weights.values()))
    exchange = maker(rng, split)
    return exchange.category, _one_turn(exchange)


def _one_turn(exchange: Exchange) -> Dialogue:
    return Dialogue((Turn(exchange.question, exchange.answer),))


def _of_makers(
    kind: Callable[[Random, Split, tuple[Maker, ...]], tuple[str, Dialogue]],
    makers: tuple[Maker, ...],
) -> Kind:
    return lambda rng, split: kind(rng, split, makers)


_STYLED = _of_makers(styles.system_styled, _VALUED)
_THINKING = _of_makers(
    styles.thinking, (*_TABLES, arithmetic, words.spelling, words.sorting, truth)
)
_PAIRED = _of_makers(styles.paired, (*_TABLES, arithmetic, counting))
_CHAT = _of_makers(styles.chat, _ALL)
_NAME = _of_makers(recall.name_recall, _VALUED)
_TOOL = _of_makers(tool_call, _VALUED)
_UNUSED = _of_makers(tool_unused, _VALUED)
_WORD = _of_makers(recall.word_recall, _VALUED)

_KINDS: tuple[tuple[Kind, float], ...] = (
    (_single, 55), (_CHAT, 6), (_STYLED, 18), (_THINKING, 6), (_PAIRED, 7), (_TOOL, 5),
    (_UNUSED, 1), (_NAME, 3), (_WORD, 2),
)  # fmt: skip
_TOOL_WEIGHT_LAST = 16.0
_PLAIN_TEXT_SHARE = 0.04


def training_item(seed: int, number: int, split: Split = "train") -> Dialogue | Story:
    """Item `number` of the corpus of this seed; `split` is the stage of training."""
    rng = Random(f"{seed} {number}")
    if rng.random() < _PLAIN_TEXT_SHARE:
        return story(rng) if rng.random() < 0.6 else statements(rng)
    weights = dict(_KINDS)
    if split == "last":
        weights[_TOOL] = _TOOL_WEIGHT_LAST
    (kind,) = rng.choices(list(weights), list(weights.values()))
    return kind(rng, split)[1]


def _evaluated(maker: Maker) -> Kind:
    def kind(rng: Random, split: Split) -> tuple[str, Dialogue]:
        exchange = maker(rng, split)
        return exchange.category, _one_turn(exchange)

    return kind


# By category, as in the table of results; `reversing` and the system styles are drawn from makers
# that mix categories.
CATEGORIES: dict[str, Kind] = {
    "capitals": _evaluated(facts.capital),
    "symbols": _evaluated(facts.symbol),
    "planets": _evaluated(facts.planet),
    "months": _evaluated(facts.month),
    "colours": _evaluated(facts.colour),
    "opposites": _evaluated(facts.opposite),
    "greetings": _evaluated(facts.greeting),
    "arithmetic": _evaluated(arithmetic),
    "counting": _evaluated(counting),
    "spelling": _evaluated(words.spelling),
    "reversing": _evaluated(words.spelling),
    "sorting": _evaluated(words.sorting),
    "copying": _evaluated(words.copying),
    "true or false": _evaluated(truth),
    "small talk": _evaluated(smalltalk),
    "system: capitals": _STYLED,
    "system: JSON": _STYLED,
    "system: short": _STYLED,
    "system: neutral": _STYLED,
    "thinking": _THINKING,
    "two in one": _PAIRED,
    "chat": _CHAT,
    "tool calls": _TOOL,
    "tool not needed": _UNUSED,
    "name recall": _NAME,
    "word recall": _WORD,
}


def evaluation_item(category: str, number: int) -> Dialogue:
    """Held-out item `number` of a category."""
    rng = Random(f"evaluation {category} {number}")
    kind = CATEGORIES[category]
    while True:
        found, item = kind(rng, "heldout")
        if found == category:
            return item
