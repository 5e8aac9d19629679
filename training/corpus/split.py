"""What training sees and what is held out: the whole split, as code."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from random import Random
from typing import Literal

Split = Literal["train", "heldout"]

# One phrasing in so many is held out, and one value pair in so many.
PHRASING_STRIDE = 5
PAIR_STRIDE = 12


def phrasings(of: Sequence[str], split: Split) -> list[str]:
    """The phrasings of one side: every fifth (the 5th, 10th, ...) is never trained on."""
    held = set(range(PHRASING_STRIDE - 1, len(of), PHRASING_STRIDE))
    return [text for i, text in enumerate(of) if (i in held) == (split == "heldout")]


def phrase(rng: Random, of: Sequence[str], split: Split) -> str:
    return rng.choice(phrasings(of, split))


def in_split(split: Split, *values: object) -> bool:
    """Whether a combination of values belongs to this side, by its checksum."""
    key = "|".join(str(value) for value in values)
    return (zlib.crc32(key.encode()) % PAIR_STRIDE == 0) == (split == "heldout")
