"""True or false: a statement from the tables, right or with a wrong value put in."""

from __future__ import annotations

from random import Random

from training.corpus.exchange import Exchange
from training.corpus.split import Split, phrase
from training.corpus.tables import CAPITALS, COLOURS, OPPOSITES, PLANETS, SYMBOLS

_TRUTH = (
    "True or false: {fact}", "Is this true? {fact}", "{fact} True or false?",
    "Is it true or false? {fact}", "Is the following true or false? {fact}",
    "Right or wrong? {fact}", "Is this right? {fact}", "Check this: {fact}",
    "{fact} Is that true?", "Is this statement true? {fact}",
)  # fmt: skip


def truth(rng: Random, split: Split) -> Exchange:
    table, sentence = rng.choice(
        (
            (CAPITALS, "The capital of {key} is {value}."),
            (SYMBOLS, "The symbol of {key} is {value}."),
            (PLANETS, "The {key} is {value}."),
            (COLOURS, "A {key} is {value}."),
            (dict(OPPOSITES), "The opposite of {key} is {value}."),
        )
    )
    key, value = rng.choice(list(table.items()))
    right = rng.random() < 0.5
    claimed = value
    while not right and claimed == value:
        claimed = rng.choice(list(table.values()))
    question = phrase(rng, _TRUTH, split).format(fact=sentence.format(key=key, value=claimed))
    correct = sentence.format(key=key, value=value)
    # The fact first: the verdict then only compares two words that both stand in the text.
    answer = f"{correct[:-1]}, so that is {'true' if right else 'false'}."
    return Exchange("true or false", question, answer, thought=correct)
