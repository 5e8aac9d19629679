"""Culet's answers from the exported files beside the goldens: how many are the same, and how close
fp32 calls it where one is not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import culet


@dataclass(frozen=True, slots=True)
class Form:
    """One file or folder against the goldens.

    Attributes:
        margin: the largest difference of fp32's logits between its choice and Culet's, over the
            places where an answer, given its own beginning, first differs; None where none does,
            infinity where Culet's choice is not among fp32's four best.
    """

    name: str
    num_same: int
    num_all: int
    margin: float | None


def compare_forms(paths: Mapping[str, Path], goldens_path: Path) -> list[Form]:
    """Each form's row, with the default backend and settings."""
    goldens = json.loads(goldens_path.read_text(encoding="utf-8"))
    return [_compare(name, path, goldens) for name, path in paths.items()]


def _compare(name: str, path: Path, goldens: Sequence[dict[str, Any]]) -> Form:
    margins = []
    with culet.load(path, context_length=1024) as llm:
        for golden in goldens:
            prompt, answer = golden["prompt_ids"], golden["answer_ids"]
            chosen = llm.logits([*prompt, *answer[:-1]])[len(prompt) - 1 :].argmax(-1).tolist()
            if chosen != answer:
                place = next(i for i, token in enumerate(chosen) if token != answer[i])
                margins.append(_margin(golden, place, chosen[place]))
    num_same = len(goldens) - len(margins)
    return Form(name, num_same, len(goldens), max(margins, default=None))


def _margin(golden: dict[str, Any], place: int, chosen: int) -> float:
    best = dict(zip(golden["best_ids"][place], golden["best_logits"][place], strict=True))
    return golden["best_logits"][place][0] - best.get(chosen, float("-inf"))
