"""True or false: a statement from the tables, right or with a wrong value put in."""

from __future__ import annotations

from random import Random

from training.corpus.exchange import Exchange
from training.corpus.split import Phrasings, Split, phrase
from training.corpus.tables import CAPITALS, COLOURS, OPPOSITES, PLANETS, SYMBOLS

_TRUTH = Phrasings(
    (
        "True or false: {fact}", "Is this true? {fact}", "{fact} True or false?",
        "Is it true or false? {fact}", "Is the following true or false? {fact}",
        "Right or wrong? {fact}", "Is this right? {fact}", "Check this: {fact}",
        "{fact} Is that true?", "Is this statement true? {fact}",
    ),
    (
        "Judge this statement: {fact}", "{fact} Is this statement right?",
        "Is the following right? {fact}", "Is the following a fact? {fact}",
        "Tell me if this is true: {fact}", "Tell me whether this is true or false: {fact}",
        "{fact} Right?", "Is this correct? {fact}", "{fact} Is it true?",
        "Say true or false: {fact}", "Fact or not? {fact}", "Is this fact true? {fact}",
        "Decide whether the following is true: {fact}", "Is the next sentence true? {fact}",
        "{fact} Correct?", "The following statement, is it true or false? {fact}",
        "Would you say that this is true? {fact}", "True, or is it false? {fact}",
        "Please check: {fact}", "What about this statement? {fact}",
    ),
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
