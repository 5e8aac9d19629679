"""The evaluation counts what is right, whoever answers: here a table instead of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from training.corpus import CATEGORIES
from training.corpus.stories import story
from training.dialogue import Dialogue, call_text, prompt, response_text
from training.evaluate import NAMED, Report, asked, evaluate, held_out_items, read_report

from training import evaluate as evaluation

NUM_ITEMS = 5


def right_answers() -> dict[str, str]:
    """What a faultless model says to each prompt of an evaluation of `NUM_ITEMS` a category."""
    answers = {asked(question): f"{answer}<turn|>" for question, answer in NAMED}
    for category in CATEGORIES:
        for item in held_out_items(category, NUM_ITEMS):
            answers |= answers_to(item)
    return answers


def answers_to(item: Dialogue) -> dict[str, str]:
    last = item.turns[-1]
    thought = f"<|channel>thought\n{last.thought}\n<channel|>" if last.thought else ""
    if last.tool is None:
        return {prompt(item): f"{thought}{last.answer}<turn|>"}
    call = thought + call_text(last.tool)
    after = prompt(item) + call + response_text(last.tool)
    return {prompt(item): f"{call}<|tool_response>", after: f"{last.answer}<turn|>"}


def tell(opening: str) -> str:
    """A story with the hero of an opening sentence."""
    _, rest = story(Random(1)).text.split(". ", 1)
    told = story(Random(1)).text.split()
    words = opening.removeprefix("<bos>").split()
    name, animal = words[10].rstrip("."), words[8]
    return rest.replace(told[10].rstrip("."), name).replace(told[8], animal) + "<eos>"


def evaluated(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[str, str], str] = lambda _, answer: answer
) -> Report:
    answers = right_answers()

    def generate(prompts: Sequence[str]) -> list[str]:
        return [change(p, answers[p] if p in answers else tell(p)) for p in prompts]

    monkeypatch.setattr(evaluation, "Greedy", lambda *_: generate)
    model: Any = None
    return evaluate(model, model, NUM_ITEMS)


def test_right_answers_pass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = evaluated(monkeypatch)
    assert report.misses == [] and report.passes and report.overall == 1
    assert report.scores == dict.fromkeys([*CATEGORIES, "stories"], (NUM_ITEMS, NUM_ITEMS))
    evaluation.write_report(report, tmp_path / "report.json")
    assert read_report(tmp_path / "report.json") == report


@pytest.mark.parametrize(
    "change",
    [
        lambda _, answer: answer.replace("<turn|>", ", 6<turn|>"),
        lambda _, answer: answer.replace("<turn|>", "9<turn|>"),
        lambda _, answer: answer.removesuffix("<turn|>"),
        lambda _, answer: answer.replace("Paris. ", "Paris "),
    ],
    ids=["a number more", "a digit more", "no end", "no full stop"],
)
def test_named_questions_want_the_whole_answer(
    change: Callable[[str, str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    question = asked(NAMED[-1][0])
    report = evaluated(monkeypatch, lambda p, a: change(p, a) if p == question else a)
    assert [right for _, _, right in report.named] == [True] * 4 + [False]
    assert not report.passes and report.overall == 1


def test_every_category_sees_its_own_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """A letter lost at the end of each answer (after calls and thoughts too) is a miss each."""

    def one_letter_less(_: str, answer: str) -> str:
        for end in ("<tool_call|><|tool_response>", "<turn|>", "<eos>"):
            if answer.endswith(end):
                return answer.removesuffix(end)[:-1] + end
        raise AssertionError(answer)

    report = evaluated(monkeypatch, one_letter_less)
    assert report.overall == 0 and len(report.misses) == NUM_ITEMS * len(report.scores)


def test_a_missing_thought_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    report = evaluated(monkeypatch, lambda _, answer: answer.rpartition("<channel|>")[2])
    assert report.scores["thinking"] == (0, NUM_ITEMS)


@pytest.mark.parametrize(
    ("scores", "passes"),
    [
        ({"a": (36, 40), "b": (40, 40)}, True),
        ({"a": (36, 40), "b": (39, 40)}, False),  # 93.75% of all
        ({"a": (35, 40), "b": (40, 40), "c": (40, 40), "d": (40, 40)}, False),  # 87.5% in one
    ],
)
def test_what_passes(scores: dict[str, tuple[int, int]], passes: bool) -> None:
    assert Report(scores, [("q", "a", True)], []).passes == passes
    assert not Report(scores, [("q", "a", False)], []).passes
