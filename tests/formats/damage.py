"""Damaged files for `fuzz`: one to four places of a sound file changed.

A length or hash at the front that no longer fits would end every reading there, so half of the
files get it put right again, and what lies behind it is read.
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from culet.formats.packed import PRELUDE

_NUMBERS = (0, 1, 2, 3, 4, 7, 8, 9, 12, 13, 31, 32, 64, 255, 1 << 16, (1 << 31) - 1, 1 << 32)
_BIG = ((1 << 40), (1 << 62), (1 << 63) - 1, (1 << 64) - 1, (1 << 64) - 32)
_JSON_BITS = (b"null", b"-1", b"1e999", b"[]", b"{}", b'""', b"true", b"9" * 40, b"[" * 50, b'"a":')


@dataclass(frozen=True)
class Target:
    """A reader and the sound files that it is given damaged.

    Attributes:
        name: of the file that is read.
        read: reads that file.
        hot_bytes: damage falls within so many bytes from the beginning or the end.
        mend: puts the length or hash at the front right; it gets the damaged and the sound file.
    """

    kind: str
    name: str
    seeds: Sequence[bytes]
    read: Callable[[Path], None]
    hot_bytes: int = 1 << 20
    is_text: bool = False
    mend: Callable[[bytearray, bytes], bytes] | None = None


def damaged(target: Target, rng: random.Random) -> bytes:
    """A sound file with one to four places changed."""
    sound = rng.choice(target.seeds)
    raw = bytearray(sound)
    for _ in range(rng.randint(1, 4)):
        if raw:
            _damage_one_place(raw, target, rng)
    if target.mend is not None and rng.random() < 0.5:
        return target.mend(raw, sound)
    return bytes(raw)


def _damage_one_place(raw: bytearray, target: Target, rng: random.Random) -> None:
    hot = min(len(raw), target.hot_bytes)
    at = rng.randrange(hot) if rng.random() < 0.5 else len(raw) - 1 - rng.randrange(hot)
    choice = rng.random()
    if choice < 0.35:
        raw[at] = rng.randrange(256) if rng.random() < 0.5 else raw[at] ^ 1 << rng.randrange(8)
    elif choice < 0.55:
        number = rng.choice(_NUMBERS + _BIG)
        width = 8 if number >> 32 else rng.choice((1, 2, 4, 8))
        raw[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, "little")
    elif choice < 0.65:
        del raw[at : at + rng.choice((1, 2, 8, 100))]
    elif choice < 0.75:
        raw[at:at] = rng.randbytes(rng.choice((1, 2, 8, 100)))
    elif choice < 0.85:
        source = rng.randrange(len(raw))
        count = rng.choice((4, 8, 32))
        raw[at : at + count] = raw[source : source + count]
    elif choice < 0.95 and (target.is_text or b"{" in raw[at : at + 200]):
        raw[at : at + rng.randint(0, 8)] = rng.choice(_JSON_BITS)
    else:
        del raw[rng.randrange(len(raw)) :]


def mend_packed(raw: bytearray, sound: bytes) -> bytes:
    """The index begins as far from the end as it did; its place and hash say so."""
    *_, offset, _, _ = PRELUDE.unpack(sound[: PRELUDE.size])
    begin = max(PRELUDE.size, offset + len(raw) - len(sound))
    index = bytes(raw[begin:])
    front = struct.pack("<QQ32s", begin, len(index), hashlib.sha256(index).digest())
    return sound[: PRELUDE.size - len(front)] + front + bytes(raw[PRELUDE.size :])


def mend_safetensors(raw: bytearray, sound: bytes) -> bytes:
    """All that there is is header."""
    return (max(0, len(raw) - 8)).to_bytes(8, "little") + bytes(raw[8:])
