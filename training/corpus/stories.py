"""Plain text: small stories from a template grammar, and facts stated one after another."""

from __future__ import annotations

from random import Random

from training.corpus.tables import CAPITALS, NAMES, OPPOSITES, SYMBOLS
from training.dialogue import Story

ANIMALS = ("fox", "bear", "hen", "goat", "duck", "pig", "cow", "frog")
PLACES = ("in a small hut", "near a lake", "on a hill", "by the sea", "under a big oak")
TRAITS = ("kind", "clever", "lazy", "brave", "shy", "curious")
FOUND = ("a red ball", "an old box", "a gold ring", "a tiny bell", "a blue feather")
WEATHER = ("sunny", "rainy", "windy", "foggy", "cold")
FEELINGS = ("happy", "proud", "tired", "surprised")
TIMES = ("One day", "One morning", "One evening", "The next day")

OPENING = "Once upon a time there was a {trait} {animal} called {name}."
# Each group is told in this order; a long story goes round again with another day.
BODY = (
    "{name} lived {place}.",
    "{time} it was {weather}, and {name} went for a walk.",
    "On the way {name} found {found}.",
    "{name} took it home and felt {feeling}.",
)
CLOSING = "And {name} the {animal} lived happily ever after."


def _details(rng: Random) -> dict[str, str]:
    return {
        "place": rng.choice(PLACES),
        "time": rng.choice(TIMES),
        "weather": rng.choice(WEATHER),
        "found": rng.choice(FOUND),
        "feeling": rng.choice(FEELINGS),
    }


def sentences(rng: Random, count: int) -> list[str]:
    """A story of `count` sentences, the opening among them."""
    hero = {
        "name": rng.choice(NAMES),
        "animal": rng.choice(ANIMALS),
        "trait": rng.choice(TRAITS),
    }
    told = [OPENING.format(**hero)]
    while len(told) < count:
        details = _details(rng)
        told += [line.format(**hero, **details) for line in BODY]
    return told[: max(count - 1, 1)] + [CLOSING.format(**hero)] * (count > 1)


def story(rng: Random) -> Story:
    return Story(" ".join(sentences(rng, 2 + 4 * rng.randint(1, 2))))


def statements(rng: Random) -> Story:
    """Facts as a book would state them, so that plain completion knows them too."""
    table, text = rng.choice(
        (
            (CAPITALS, "The capital of {key} is {value}."),
            (SYMBOLS, "The symbol of {key} is {value}."),
            (dict(OPPOSITES), "The opposite of {key} is {value}."),
        )
    )
    rows = rng.sample(list(table.items()), rng.randint(2, 5))
    return Story(" ".join(text.format(key=key, value=value) for key, value in rows))


def follows_grammar(opening: str, continuation: str) -> bool:
    """Whether a continuation of an opening sentence is a story of this grammar about its hero."""
    words = opening.split()
    trait, animal, name = words[7], words[8], words[10].rstrip(".")
    hero = {"name": name, "animal": animal, "trait": trait}
    said = [s.strip() + "." for s in continuation.strip().split(".") if s.strip()]
    if not continuation.endswith(".") or len(said) < 2 or said[-1] != CLOSING.format(**hero):
        return False
    return all(_fits(BODY[i % len(BODY)], line, hero) for i, line in enumerate(said[:-1]))


def _fits(template: str, line: str, hero: dict[str, str]) -> bool:
    choices = {"place": PLACES, "time": TIMES, "weather": WEATHER, "found": FOUND,
               "feeling": FEELINGS}  # fmt: skip
    used = [slot for slot in choices if "{" + slot + "}" in template]
    candidates = [dict(hero)]
    for slot in used:
        candidates = [{**c, slot: value} for c in candidates for value in choices[slot]]
    return any(line == template.format(**c) for c in candidates)
