"""Greeting, thanking, and what the model says of itself and of what it doesn't know."""

from __future__ import annotations

from random import Random

from training.corpus.exchange import Exchange, framed, typed
from training.corpus.split import Phrasings, Split, phrase, phrasings
from training.corpus.tables import WORDS

_TALK: tuple[tuple[str, Phrasings], ...] = (
    ("Hello! How can I help you?", Phrasings(
        ("Hello", "Hi", "Hello!", "Hi there!", "Hey", "Good day!", "Hello there", "Hi!",
         "Hey there!", "Good day"),
        ("Hey you", "Hey, hello", "Hi again", "Hello again!", "Hey, good day!", "Hello my friend",
         "Hi, is somebody there?", "Hey hey"),
    )),
    ("I am the built-in toy model of Culet.", Phrasings(
        ("Who are you?", "What are you?", "What is your name?", "Which model are you?",
         "Tell me who you are.", "Are you an AI?", "Introduce yourself.", "What model is this?",
         "What do people call you?", "Please introduce yourself."),
        ("Say who you are.", "What should I call you?", "Who am I talking to?", "Who is this?",
         "Do you have a name?", "Tell me your name.", "What kind of model are you?",
         "Can you introduce yourself?"),
    )),
    ("I know a few facts, small numbers and short words.", Phrasings(
        ("What can you do?", "What do you know?", "How can you help me?", "Help",
         "What are you able to do?", "What can I ask you?", "What are you good at?",
         "Which things do you know?", "What can you tell me?", "What can you help me with?"),
        ("Are you able to help me?", "Tell me what you are able to say.",
         "Are you able to do much?",
         "What questions are you able to answer?", "Which questions can I ask?",
         "With what can you help?", "What is it that you can do?", "Do you know much?",
         "Tell me what you can do.", "How much do you know?", "Can you help me?"),
    )),
    ("You are welcome!", Phrasings(
        ("Thanks", "Thank you!", "Thanks!", "Thank you very much.", "Thanks a lot!",
         "Thank you so much!", "Many thanks!", "Great, thanks!", "Thank you", "Thanks so much!"),
        ("That helps a lot, thank you!", "You helped me a lot.", "Thank you a lot.",
         "Okay, thanks.", "Thanks, that is great.", "A big thank you!", "Good, thank you.",
         "Thanks for your help!", "Thank you for the answer."),
    )),
    ("Goodbye!", Phrasings(
        ("Bye", "Goodbye!", "See you!", "Bye bye!", "Goodbye", "See you later!", "Farewell!",
         "See you soon!", "Bye!", "Bye for now!"),
        ("I must go now.", "That is all for now, bye.", "Okay, bye!", "See you again!",
         "Have a good day, bye!", "Time to go, goodbye.", "Until next time!"),
    )),
)  # fmt: skip
_MARKS = "!?."
_UNKNOWN = "I am a small model and don't know that."
_BEYOND = Phrasings((
    "How does a {word} work?", "Who made the first {word}?", "What is the price of a {word}?",
    "Where can I buy a {word}?", "Why do people need a {word}?", "Tell me a joke about a {word}.",
    "Write a poem about a {word}.", "How old is the {word}?", "Explain what a {word} is.",
    "What is the history of the {word}?", "Who is the president?", "What time is it?",
    "What is the meaning of life?", "How do I cook rice?", "Who won the game yesterday?",
    "What should I do with my {word}?", "Can you draw a {word}?", "Do you like my {word}?",
    "Who invented the {word}?", "How do I build a {word}?",
), (
    "How do I make a {word}?", "How do I paint a {word}?", "Can you build a {word}?",
    "How do people build a {word}?", "Who can build me a {word}?", "How long does a {word} last?",
    "What is the history of music?", "Tell me the history of a {word}.", "How big is a {word}?",
    "Who won the race?", "Who won last year?", "What happened yesterday?", "What is the news?",
    "Why is a {word} so expensive?", "Why do I need a {word}?", "Why do people sleep?",
    "How do I clean a {word}?", "How do I fix my {word}?", "What is the weather tomorrow?",
    "Is a {word} heavy?", "Do people eat a {word}?", "How do I learn to sing?",
    "Sing a song about a {word}.", "What does a {word} cost?", "How many people own a {word}?",
))  # fmt: skip


def smalltalk(rng: Random, split: Split) -> Exchange:
    if rng.random() < 0.25:
        question = phrase(rng, _BEYOND, split).format(word=rng.choice(WORDS))
        return Exchange("small talk", framed(rng, question), _UNKNOWN)
    answer, questions = rng.choice(_TALK)
    question = phrase(rng, questions, split)
    while split == "heldout" and _differs_in_marks_only(question, questions):
        question = phrase(rng, questions, split)
    # What is said in the first stage may be "Hey Thanks!", which has no one answer.
    asked = framed(rng, question) if split == "train" else typed(rng, question)
    return Exchange("small talk", asked, answer)


def _differs_in_marks_only(question: str, questions: Phrasings) -> bool:
    """Whether a held-out phrasing is a trained one but for marks and capitals."""
    trained = {text.rstrip(_MARKS).lower() for text in phrasings(questions, "train")}
    return question.rstrip(_MARKS).lower() in trained
