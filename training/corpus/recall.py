"""Dialogues that need their own past: a name given two turns ago, a word some 300 tokens back.

Held out are pairs of value and phrasing of the last question.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from training.corpus.exchange import Maker
from training.corpus.split import Split, in_split
from training.corpus.stories import sentences
from training.corpus.tables import NAMES, WORDS
from training.dialogue import Dialogue, Turn

_NAME_GIVEN = ("My name is {name}.", "I am {name}.", "Hi, I'm {name}.", "Hello, my name is {name}.",
               "You can call me {name}.")  # fmt: skip
_NAME_ASKED = ("What is my name?", "What's my name?", "Do you remember my name?", "Who am I?",
               "Can you tell me my name?")  # fmt: skip
_WORD_GIVEN = ("Remember this word: {word}.", "Please remember the word {word}.",
               "Remember the word {word}.", "The secret word is {word}. Remember it.")  # fmt: skip
_WORD_ASKED = ("Which word should you remember?", "What was the word?", "What is the secret word?",
               "Which word did I tell you?", "What word did I ask you to remember?")  # fmt: skip


def name_recall(rng: Random, split: Split, makers: Sequence[Maker]) -> tuple[str, Dialogue]:
    while True:
        name, asked = rng.choice(NAMES), rng.choice(_NAME_ASKED)
        if in_split(split, name, asked):
            break
    given = Turn(rng.choice(_NAME_GIVEN).format(name=name), f"Nice to meet you, {name}.")
    between = 1 if rng.random() < 0.7 else rng.randint(0, 3)
    exchanges = [rng.choice(makers)(rng, split) for _ in range(between)]
    middle = tuple(Turn(e.question, e.answer) for e in exchanges)
    return "name recall", Dialogue((given, *middle, Turn(asked, f"Your name is {name}.")))


def word_recall(rng: Random, split: Split, makers: Sequence[Maker]) -> tuple[str, Dialogue]:
    """Between word and question lies a story of up to some 350 tokens, told by the user."""
    while True:
        word, asked = rng.choice(WORDS), rng.choice(_WORD_ASKED)
        if in_split(split, word, asked):
            break
    given = Turn(rng.choice(_WORD_GIVEN).format(word=word), f"I will remember the word {word}.")
    if split == "heldout":
        length = 30
    else:
        length = rng.choice((0, 2, 6, 10, 14, 22, 30))
    told: tuple[Turn, ...] = ()
    if length:
        # The story must not name a word of the list that could be taken for the one asked for.
        story = " ".join(sentences(rng, length))
        told = (Turn(f"Here is a story. {story}", "Thank you for the story."),)
    return "word recall", Dialogue((given, *told, Turn(asked, f"The word is {word}.")))
