"""What the lists of hostile files are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Make = Callable[[], bytes]


@dataclass(frozen=True)
class Maker:
    """A function that returns the bytes of one file, and a pattern of what the error must say."""

    name: str
    make: Make
    expected: str


def registering(makers: list[Maker]) -> Callable[[str], Callable[[Make], Make]]:
    """A decorator that adds functions to a list, with the error that their files must raise."""

    def maker(expected: str) -> Callable[[Make], Make]:
        def register(make: Make) -> Make:
            makers.append(Maker(make.__name__, make, expected))
            return make

        return register

    return maker
