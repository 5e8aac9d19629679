"""Greeting, thanking, and what the model says of itself and of what it doesn't know."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from training.corpus.exchange import Exchange, framed
from training.corpus.split import Split, phrase, phrasings
from training.corpus.tables import WORDS

_TALK: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Hello! How can I help you?",
     ("Hello", "Hi", "Hello!", "Hi there!", "Hey", "Good day!", "Hello there", "Hi!", "Hey there!",
      "Good day")),
    ("I am the built-in toy model of Culet.",
     ("Who are you?", "What are you?", "What is your name?", "Which model are you?",
      "Tell me who you are.", "Are you an AI?", "Introduce yourself.", "What model is this?",
      "What do people call you?", "Please introduce yourself.")),
    ("I know a few facts, small numbers and short words.",
     ("What can you do?", "What do you know?", "How can you help me?", "Help",
      "What are you able to do?", "What can I ask you?", "What are you good at?",
      "Which things do you know?", "What can you tell me?", "What can you help me with?")),
    ("You are welcome!",
     ("Thanks", "Thank you!", "Thanks!", "Thank you very much.", "Thanks a lot!",
      "Thank you so much!", "Many thanks!", "Great, thanks!", "Thank you", "Thanks so much!")),
    ("Goodbye!",
     ("Bye", "Goodbye!", "See you!", "Bye bye!", "Goodbye", "See you later!", "Farewell!",
      "See you soon!", "Bye!", "Bye for now!")),
)  # fmt: skip
_MARKS = "!?."
_UNKNOWN = "I am a small model and don't know that."
_BEYOND = (
    "How does a {word} work?", "Who made the first {word}?", "What is the price of a {word}?",
    "Where can I buy a {word}?", "Why do people need a {word}?", "Tell me a joke about a {word}.",
    "Write a poem about a {word}.", "How old is the {word}?", "Explain what a {word} is.",
    "What is the history of the {word}?", "Who is the president?", "What time is it?",
    "What is the meaning of life?", "How do I cook rice?", "Who won the game yesterday?",
    "What should I do with my {word}?", "Can you draw a {word}?", "Do you like my {word}?",
    "Who invented the {word}?", "How do I build a {word}?",
)  # fmt: skip


def smalltalk(rng: Random, split: Split) -> Exchange:
    if rng.random() < 0.25:
        question = phrase(rng, _BEYOND, split).format(word=rng.choice(WORDS))
        return Exchange("small talk", framed(rng, question), _UNKNOWN)
    answer, questions = rng.choice(_TALK)
    question = phrase(rng, questions, split)
    while split == "heldout" and _differs_in_marks_only(question, questions):
        question = phrase(rng, questions, split)
    return Exchange("small talk", framed(rng, question), answer)


def _differs_in_marks_only(question: str, questions: Sequence[str]) -> bool:
    """Whether a held-out phrasing is a trained one but for marks and capitals."""
    trained = {text.rstrip(_MARKS).lower() for text in phrasings(questions, "train")}
    return question.rstrip(_MARKS).lower() in trained
