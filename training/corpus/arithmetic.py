"""Arithmetic to 20 x 20, and counting from one number to another."""

from __future__ import annotations

from random import Random

from training.corpus.exchange import Exchange, framed
from training.corpus.split import Phrasings, Split, in_split, phrase

LARGEST = 20
LONGEST_COUNT = 12
LARGEST_COUNT = 50

_SUM = Phrasings(
    (
        "What is {a} {sign} {b}?", "{a} {sign} {b}", "{a} {sign} {b} =",
        "Calculate {a} {sign} {b}.",
        "How much is {a} {sign} {b}?", "What's {a} {sign} {b}?", "Work out {a} {sign} {b}.",
        "What does {a} {sign} {b} make?", "What is {a} {verb} {b}?",
        "Tell me what {a} {sign} {b} is.",
        "Can you calculate {a} {sign} {b}?", "Compute {a} {sign} {b}.",
        "How much is {a} {verb} {b}?",
        "Solve {a} {sign} {b}.", "I need the result of {a} {sign} {b}.",
    ),
    (
        "Say what {a} {sign} {b} is.", "{a} {verb} {b}", "{a} {verb} {b} is what?",
        "I want to know {a} {sign} {b}.", "Give me {a} {sign} {b}.", "{a} {sign} {b} makes what?",
    ),
)  # fmt: skip
_VERBS = {"+": "plus", "-": "minus", "x": "times"}
_COUNT = (
    "Count from {a} to {b}.", "Please count from {a} to {b}.", "Count {a} to {b}.",
    "Can you count from {a} to {b}?", "List the numbers from {a} to {b}.",
    "Write the numbers from {a} to {b}.",
)  # fmt: skip


def arithmetic(rng: Random, split: Split) -> Exchange:
    sign = rng.choices("+-x", (1, 1, 3))[0]
    a, b = rng.randint(1, LARGEST), rng.randint(1, LARGEST)
    if sign == "-" and a < b:
        a, b = b, a
    value = {"+": a + b, "-": a - b, "x": a * b}[sign]
    text = phrase(rng, _SUM, split)
    shown = rng.choice(("*", "×")) if sign == "x" and rng.random() < 0.2 else sign
    question = text.format(a=a, b=b, sign=shown, verb=_VERBS[sign])
    sentence = f"{a} {sign} {b} = {value}"
    return Exchange("arithmetic", framed(rng, question), sentence, str(value), _worked(a, sign, b))


def _worked(a: int, sign: str, b: int) -> str:
    """Multiplication by tens and ones; sums through ten are known by heart."""
    if sign == "x" and a > 10:
        ones = a - 10
        return f"10 x {b} = {10 * b}. {ones} x {b} = {ones * b}. {10 * b} + {ones * b} = {a * b}."
    value = {"+": a + b, "-": a - b, "x": a * b}[sign]
    return f"{a} {_VERBS[sign]} {b} is {value}."


def counting(rng: Random, split: Split) -> Exchange:
    """Pairs of ends are held out; every phrasing is trained."""
    while True:
        a = 1 if rng.random() < 0.25 else rng.randint(1, LARGEST_COUNT - 2)
        b = rng.randint(a + 2, min(a + LONGEST_COUNT, LARGEST_COUNT))
        if (a, b) == (1, 5) and split == "heldout":
            continue  # one of the named questions: shown in the table of its own
        if in_split(split, a, b):
            break
    answer = ", ".join(str(n) for n in range(a, b + 1))
    question = framed(rng, rng.choice(_COUNT).format(a=a, b=b))
    return Exchange("counting", question, answer, thought=f"I start at {a} and stop at {b}.")
