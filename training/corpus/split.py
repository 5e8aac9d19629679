"""What training sees and what is held out: the whole split, as code."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

# Training has three stages: facts first, with some phrasings each; then the same facts with many
# more, from which a small model learns to look through the phrasing; last, more of what an
# evaluation of the second found weak.
Split = Literal["train", "wide", "last", "heldout"]

# One phrasing in so many is held out, and one value pair in so many.
PHRASING_STRIDE = 5
PAIR_STRIDE = 12


@dataclass(frozen=True, slots=True)
class Phrasings:
    """Ways to ask one thing.

    Attributes:
        first: of both stages and of the evaluation.
        later: added in the second stage.
        last: added in the third.
    """

    first: Sequence[str]
    later: Sequence[str] = ()
    last: Sequence[str] = ()


def phrasings(of: Sequence[str] | Phrasings, split: Split) -> list[str]:
    """The phrasings of one side: of the first ones, every fifth (5th, 10th, ...) is never trained.

    A plain sequence is one without later ones.
    """
    if not isinstance(of, Phrasings):
        of = Phrasings(of)
    first = of.first
    held = set(range(PHRASING_STRIDE - 1, len(first), PHRASING_STRIDE))
    found = [text for i, text in enumerate(first) if (i in held) == (split == "heldout")]
    added = {"wide": of.later, "last": (*of.later, *of.last)}
    return [*found, *added.get(split, ())]


def phrase(rng: Random, of: Sequence[str] | Phrasings, split: Split) -> str:
    return rng.choice(phrasings(of, split))


def in_split(split: Split, *values: object) -> bool:
    """Whether a combination of values belongs to this side, by its checksum."""
    key = "|".join(str(value) for value in values)
    return (zlib.crc32(key.encode()) % PAIR_STRIDE == 0) == (split == "heldout")
