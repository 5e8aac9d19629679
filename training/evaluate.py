"""Exact-match evaluation on held-out items, by category.

Answers are greedy, from transformers in fp32 with the weights as they are shipped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.progress import track
from tokenizers import Tokenizer
from transformers import Gemma4ForCausalLM

from training.corpus import CATEGORIES, evaluation_item
from training.corpus.stories import ANIMALS, OPENING, TRAITS, follows_grammar
from training.corpus.tables import NAMES
from training.dialogue import Dialogue, Turn, call_text, prompt, response_text

ITEMS_PER_CATEGORY = 40
# The longest right answers are stories, of up to 86 tokens; a third round of theirs is right too.
MAX_NEW_TOKENS = 192
# Questions that must be answered, each with its whole answer: one that runs on is wrong.
NAMED: tuple[tuple[str, str], ...] = (
    ("What is the chemical symbol of gold?", "The symbol of gold is Au."),
    ("What is 17 x 3?", "17 x 3 = 51"),
    ('How do you say "good morning" in German?', "Good morning in German is Guten Morgen."),
    ("What is the largest planet?", "The largest planet is Jupiter."),
    (
        "What is the capital of France? And count from 1 to 5.",
        "The capital of France is Paris. 1, 2, 3, 4, 5",
    ),
)


@dataclass(frozen=True, slots=True)
class Miss:
    """A held-out item that was answered otherwise."""

    category: str
    prompt: str
    expected: str
    answered: str


@dataclass(slots=True)
class Report:
    """Results: right and total by category, answers to the named questions, and what went wrong."""

    scores: dict[str, tuple[int, int]]
    named: list[tuple[str, str, bool]]
    misses: list[Miss]

    @property
    def overall(self) -> float:
        return sum(r for r, _ in self.scores.values()) / sum(t for _, t in self.scores.values())

    @property
    def passes(self) -> bool:
        """95% overall, 90% in each category, all named questions."""
        each = all(right >= 0.9 * total for right, total in self.scores.values())
        return self.overall >= 0.95 and each and all(right for _, _, right in self.named)


def evaluate(
    model: Gemma4ForCausalLM, tokenizer: Tokenizer, per_category: int = ITEMS_PER_CATEGORY
) -> Report:
    generate = Greedy(model, tokenizer)
    report = Report({}, [], [])
    for category in track([*CATEGORIES, "stories"], "evaluating"):
        if category == "stories":
            right = _stories(generate, per_category, report)
        else:
            right = _category(generate, category, per_category, report)
        report.scores[category] = (right, per_category)
    answers = generate([asked(question) for question, _ in NAMED])
    for (question, expected), answer in zip(NAMED, answers, strict=True):
        right = answer == expected + "<turn|>"
        report.named.append((question, answer.removesuffix("<turn|>"), right))
    return report


def asked(question: str) -> str:
    """The prompt of a question without system turn."""
    return prompt(Dialogue((Turn(question, ""),)))


def held_out_items(category: str, count: int) -> list[Dialogue]:
    """The first `count` held-out items of a category whose prompts differ from one another."""
    items: dict[str, Dialogue] = {}
    number = 0
    while len(items) < count:
        item = evaluation_item(category, number)
        items.setdefault(prompt(item), item)
        number += 1
    return list(items.values())


def write_report(report: Report, path: Path) -> None:
    path.write_text(json.dumps(asdict(report), indent=1, ensure_ascii=False), encoding="utf-8")


def read_report(path: Path) -> Report:
    content = json.loads(path.read_text(encoding="utf-8"))
    return Report(
        {category: (right, total) for category, (right, total) in content["scores"].items()},
        [(question, answer, right) for question, answer, right in content["named"]],
        [Miss(**miss) for miss in content["misses"]],
    )


class Greedy:
    """Greedy continuation of many prompts; those of one length run together."""

    def __init__(self, model: Gemma4ForCausalLM, tokenizer: Tokenizer) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.stop_ids: list[int] = model.config.eos_token_id  # type: ignore[assignment]

    def __call__(self, prompts: Sequence[str]) -> list[str]:
        """Continuations with special tokens, the one that ended them included."""
        encoded = [self.tokenizer.encode(text, add_special_tokens=False).ids for text in prompts]
        answers = [""] * len(prompts)
        for length in {len(ids) for ids in encoded}:
            rows = [i for i, ids in enumerate(encoded) if len(ids) == length]
            batch = self.ids(torch.tensor([encoded[i] for i in rows]))
            for i, ids in zip(rows, batch, strict=True):
                answers[i] = self.tokenizer.decode(ids, skip_special_tokens=False)
        return answers

    @torch.inference_mode()
    def ids(self, prompts: torch.Tensor) -> list[list[int]]:
        """New token ids of each row of int64 [n, length], up to a stop id and with it."""
        out = self.model.generate(
            input_ids=prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=False,
            max_new_tokens=MAX_NEW_TOKENS,
            eos_token_id=self.stop_ids,
        )
        rows = []
        for row in out[:, prompts.shape[1] :].tolist():
            ends = [i for i, token in enumerate(row) if token in self.stop_ids]
            rows.append(row[: ends[0] + 1] if ends else row)
        return rows


def _category(generate: Greedy, category: str, count: int, report: Report) -> int:
    items = held_out_items(category, count)
    prompts = [prompt(item) for item in items]
    answers = generate(prompts)
    tools = [item.turns[-1].tool for item in items]
    # What a tool gives back is only shown to a model that called it correctly.
    called = [
        i for i, tool in enumerate(tools)
        if tool and _after_thought(answers[i], items[i]) == call_text(tool) + "<|tool_response>"
    ]  # fmt: skip
    after = generate([prompts[i] + _with_result(answers[i], items[i]) for i in called])
    results = dict(zip(called, after, strict=True))
    right = 0
    for i, item in enumerate(items):
        expected = item.turns[-1].answer + "<turn|>"
        answer = results.get(i, "(no call) " + answers[i]) if tools[i] else answers[i]
        if not tools[i]:
            answer = _after_thought(answer, item)
        if answer == expected:
            right += 1
        else:
            report.misses.append(Miss(category, prompts[i], expected, answer))
    return right


def _after_thought(answer: str, item: Dialogue) -> str:
    """The answer after its thought; where one is missing, that is said, so that it fails."""
    if not item.turns[-1].thought:
        return answer
    thought, end, rest = answer.partition("\n<channel|>")
    is_there = end and thought.removeprefix("<|channel>thought\n") not in ("", thought)
    return rest if is_there else "(no thought) " + answer


def _with_result(answer: str, item: Dialogue) -> str:
    tool = item.turns[-1].tool
    assert tool is not None
    return answer.removesuffix("<|tool_response>") + response_text(tool)


def _stories(generate: Greedy, count: int, report: Report) -> int:
    """Continuations must obey the grammar and keep to their hero."""
    openings = [
        OPENING.format(
            trait=TRAITS[i % len(TRAITS)],
            animal=ANIMALS[i % len(ANIMALS)],
            name=NAMES[i * 7 % len(NAMES)],
        )
        for i in range(count)
    ]
    right = 0
    for opening, text in zip(openings, generate([f"<bos>{o}" for o in openings]), strict=True):
        if text.endswith("<eos>") and follows_grammar(opening, text.removesuffix("<eos>")):
            right += 1
        else:
            report.misses.append(Miss("stories", opening, "a story of the grammar", text))
    return right
