"""Exchanges over letters and words: spelling, reversing, sorting, copying.

Held out here are values: pairs of word and task, sets of words. Every phrasing is trained.
"""

from __future__ import annotations

from random import Random

from training.corpus.exchange import Exchange, framed
from training.corpus.split import Split, in_split
from training.corpus.tables import WORDS

_SPELL = (
    "Spell the word {word}.", "How do you spell {word}?", "Spell {word}.", "Please spell {word}.",
    "Can you spell the word {word}?",
)  # fmt: skip
_SPELL_TWO = (
    "Spell {both}.", "How do you spell {both}?", "Please spell the words {both}.",
    "Spell the words {both}.",
)  # fmt: skip
_REVERSE = (
    "Reverse the word {word}.", "Spell {word} backwards.", "What is {word} backwards?",
    "Write {word} backwards.", "Reverse {word}.",
)  # fmt: skip
# Letters that are no word, after the first stage: what reversing itself is, whatever the word.
_LETTERS = "aabcdeeeefghiiklmnoooprrsttuuvwyz"
_LETTERS_SHARE = {"wide": 0.5, "last": 0.15}
_LENGTH = (
    "How many letters does {word} have?", "How many letters are in {word}?",
    "How many letters are in the word {word}?", "Count the letters of {word}.",
)  # fmt: skip
_FIRST = (
    "What is the first letter of {word}?", "Which letter does {word} start with?",
    "With which letter does the word {word} begin?",
)  # fmt: skip
_LAST = (
    "What is the last letter of {word}?", "Which letter does {word} end with?",
    "With which letter does the word {word} end?",
)  # fmt: skip
_SORT = (
    "Sort these words: {words}.", "Put these words in alphabetical order: {words}.",
    "Alphabetise: {words}.", "Sort {words} alphabetically.",
    "Order these words by the alphabet: {words}.",
)  # fmt: skip
_COPY = (
    "Repeat after me: {words}", "Say this back to me: {words}", "Copy these words: {words}",
    "Repeat: {words}", "Write exactly this: {words}",
)  # fmt: skip


def spelling(rng: Random, split: Split) -> Exchange:
    """Letters are written apart (c-a-t), so that each is a token; reversing spells first.

    One word's spelling can't be guessed from its token, so it is trained for all words and never
    evaluated; held out are pairs of words spelled together, and pairs of word and other task.
    """
    if split in _LETTERS_SHARE and rng.random() < _LETTERS_SHARE[split]:
        return _letters_reversed(rng)
    tasks = ("one", "two", "reverse", "length", "first", "last")
    while True:
        word, second = rng.sample(WORDS, 2)
        weights = (2, 2, 6, 2, 3, 1) if split == "last" else (2, 2, 4, 2, 1, 1)
        (task,) = rng.choices(tasks, weights)
        if task == "one":
            if split != "heldout":
                break
        elif in_split(split, word, second if task == "two" else task):
            break
    letters = "-".join(word)
    both = f"{word} and {second}"
    question, answer, short = {
        "one": (_SPELL, f"{word}: {letters}", letters),
        "two": (_SPELL_TWO, f"{word}: {letters}, {second}: {'-'.join(second)}", ""),
        "reverse": (_REVERSE, f"{letters} backwards is {'-'.join(reversed(word))}", word[::-1]),
        "length": (_LENGTH, f"{letters} has {len(word)} letters.", str(len(word))),
        "first": (_FIRST, f"The first letter of {letters} is {word[0]}.", word[0]),
        "last": (_LAST, f"The last letter of {letters} is {word[-1]}.", word[-1]),
    }[task]
    asked = framed(rng, rng.choice(question).format(word=word, both=both))
    category = "reversing" if task == "reverse" else "spelling"
    return Exchange(category, asked, answer, short, f"The letters are {letters}.")


def _letters_reversed(rng: Random) -> Exchange:
    """A row of letters, given apart."""
    letters = [rng.choice(_LETTERS) for _ in range(rng.choice((3, 3, 3, 4, 4, 5, 5, 6, 6, 7, 8)))]
    word, answer = "-".join(letters), "-".join(reversed(letters))
    question = framed(rng, rng.choice(_REVERSE).format(word=word))
    thought = f"The letters are {word}."
    short = "".join(reversed(letters))
    return Exchange("reversing", question, f"{word} backwards is {answer}", short, thought)


def sorting(rng: Random, split: Split) -> Exchange:
    while True:
        words = rng.sample(WORDS, 3)
        if in_split(split, *sorted(words)):
            break
    ordered = sorted(words)
    question = framed(rng, rng.choice(_SORT).format(words=", ".join(words)))
    thought = f"{ordered[0]} comes first, then {ordered[1]}, then {ordered[2]}."
    return Exchange("sorting", question, ", ".join(ordered), thought=thought)


def copying(rng: Random, split: Split) -> Exchange:
    while True:
        words = rng.sample(WORDS, rng.randint(2, 5))
        if in_split(split, *words):
            break
    text = " ".join(words)
    return Exchange("copying", rng.choice(_COPY).format(words=text), text)
