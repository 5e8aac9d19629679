"""The registry of wild files: a maker, and the verdict that its file must get."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from wild.wild_models import WildModel, e_series

Make = Callable[[Path], Path]


@dataclass(frozen=True)
class Case:
    """One file or folder.

    Attributes:
        make: writes it into an empty folder; returns what is opened.
        refused: a pattern of the reason; None for a file that is served.
        logged: a pattern of what loading says about it, once.
        same_as_plain: the model is the plain one in another form, so its logits are the same.
    """

    name: str
    make: Make
    refused: str | None = None
    logged: str | None = None
    same_as_plain: bool = False


CASES: list[Case] = []


def case(
    refused: str | None = None, *, logged: str | None = None, same: bool = False
) -> Callable[[Make], Make]:
    """Register a maker that writes the file itself."""

    def register(make: Make) -> Make:
        CASES.append(Case(make.__name__, make, refused, logged, same))
        return make

    return register


def changed(
    refused: str | None = None, *, logged: str | None = None, same: bool = False
) -> Callable[[Callable[[WildModel], None]], Callable[[WildModel], None]]:
    """Register a function that changes the plain E-series model before it is written."""

    def register(change: Callable[[WildModel], None]) -> Callable[[WildModel], None]:
        add(change.__name__, change, refused, logged=logged, same=same)
        return change

    return register


def add(
    name: str,
    change: Callable[[WildModel], None],
    refused: str | None = None,
    *,
    logged: str | None = None,
    same: bool = False,
) -> None:
    def make(folder: Path) -> Path:
        model = e_series()
        change(model)
        return model.write(folder)

    CASES.append(Case(name, make, refused, logged, same))


class Named:
    """A maker with a name of its own, for makers made in a loop."""

    def __init__(self, name: str, make: Make) -> None:
        self.__name__ = name
        self._make = make

    def __call__(self, folder: Path) -> Path:
        return self._make(folder)
