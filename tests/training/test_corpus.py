"""The corpus: the same every time, nothing evaluated is trained, and its text is what is served."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from training.batches import ITEMS_PER_STEP
from training.commands import STAGES
from training.corpus import CATEGORIES, training_item
from training.corpus.exchange import ENDINGS, OPENINGS
from training.corpus.split import Phrasings, Split, in_split, phrasings
from training.corpus.stories import follows_grammar, story
from training.dialogue import Dialogue, Story, prompt, render
from training.evaluate import ITEMS_PER_CATEGORY, held_out_items
from training.tokenizer import CONTROL, USER_DEFINED

from culet.chat.gemma4 import Gemma4Renderer
from culet.chat.messages import parse_messages, parse_tools
from culet.chat.prompt import ControlSpelling
from culet.chat.template import ChatTemplate, Renderer

TEMPLATE = Path(__file__).parents[2] / "training" / "chat_template.jinja"
NUM_ITEMS = 1500


def dialogues(count: int) -> Iterator[Dialogue]:
    items = (training_item(3, number) for number in range(count))
    return (item for item in items if isinstance(item, Dialogue))


def test_an_item_depends_on_its_number_alone() -> None:
    forwards = [training_item(3, n) for n in range(50)]
    backwards = [training_item(3, n) for n in reversed(range(50))][::-1]
    assert forwards == backwards
    assert forwards != [training_item(4, n) for n in range(50)]


def test_splits_have_nothing_in_common() -> None:
    texts = [f"phrasing {n}" for n in range(23)]
    train, held = phrasings(texts, "train"), phrasings(texts, "heldout")
    assert sorted(train + held) == sorted(texts) and not set(train) & set(held)
    assert all(in_split("train", n) != in_split("heldout", n) for n in range(100))


def test_later_phrasings_join_in_later_stages_and_are_never_held_out() -> None:
    ways = Phrasings([f"first {n}" for n in range(12)], ["later 1", "later 2"], ["last"])
    train, wide, last = (phrasings(ways, split) for split in SPLITS)
    held = phrasings(ways, "heldout")
    assert wide == [*train, "later 1", "later 2"] and last == [*wide, "last"]
    assert sorted(train + held) == sorted(ways.first)
    assert all(in_split("train", n) == in_split("wide", n) for n in range(100))


# The shipped model's training, whole: the run's seed, and as many items as it reads.
SEED = 1
SPLITS: tuple[Split, ...] = ("train", "wide", "last")
NUM_ITEMS_OF_STAGE = [steps * ITEMS_PER_STEP for steps in STAGES]


@pytest.mark.parametrize(
    "counts",
    [(15_000, 6_000, 4_000), pytest.param(NUM_ITEMS_OF_STAGE, marks=pytest.mark.slow)],
    ids=["some", "all"],
)
def test_nothing_evaluated_is_trained(counts: Sequence[int]) -> None:
    """Not as a question of any turn, answered or only read."""
    trained: set[str] = set()
    pairs: set[tuple[str, str]] = set()
    begin = 0
    stages: list[tuple[int, Split]] = []
    for split, size, count in zip(SPLITS, NUM_ITEMS_OF_STAGE, counts, strict=True):
        stages += ((number, split) for number in range(begin, begin + count))
        begin += size
    for number, split in stages:
        item = training_item(SEED, number, split)
        if isinstance(item, Dialogue):
            last = item.turns[-1].question
            pairs.add((item.turns[0].question, last))
            trained |= {bare(turn.question) for turn in item.turns}
    for category in CATEGORIES:
        for item in held_out_items(category, ITEMS_PER_CATEGORY):
            last = item.turns[-1].question
            if category.endswith("recall"):  # what is asked for was given in the first turn
                assert (item.turns[0].question, last) not in pairs, category
            else:
                assert bare(last) not in trained, category


def bare(question: str) -> str:
    """Without polite openings and endings, marks and capitals: all that framing may add."""
    for opening in OPENINGS:
        question = question.removeprefix(opening)
    for ending in ENDINGS:
        question = question.removesuffix(ending)
    return question.rstrip("?.!").lower()


def test_items_of_a_category_differ() -> None:
    for category in CATEGORIES:
        items = held_out_items(category, ITEMS_PER_CATEGORY)
        assert len({prompt(item) for item in items}) == len(items) == ITEMS_PER_CATEGORY
        assert items[:10] == held_out_items(category, 10)


@pytest.fixture(scope="module", params=["file", "built in"])
def template(request: pytest.FixtureRequest) -> Renderer:
    """The template that the model's files carry, and Culet's renderer for files without one."""
    if request.param == "built in":
        return Gemma4Renderer(has_empty_thought=False)
    spelling = ControlSpelling("<bos>", "<eos>", frozenset((*CONTROL, *USER_DEFINED)))
    return ChatTemplate(TEMPLATE.read_text(encoding="utf-8"), TEMPLATE.name, spelling)


def served(count: int) -> Iterator[Dialogue]:
    """Dialogues as clients can send them: what a tool gives back is text."""
    for item in dialogues(count):
        turns = []
        for turn in item.turns:
            tool = turn.tool
            if tool is not None and not isinstance(tool.response, str):
                tool = replace(tool, response=json.dumps(tool.response))
            turns.append(replace(turn, tool=tool))
        yield replace(item, turns=tuple(turns))


def test_text_is_what_the_template_renders(template: Renderer) -> None:
    for item in served(NUM_ITEMS):
        messages, tools = parse_messages(as_messages(item)), parse_tools(as_tools(item))
        rendered = template.render(
            messages, tools=tools, enable_thinking=item.thinking, add_generation_prompt=False
        )
        assert rendered.text == without_last_thought(item)


def test_prompt_is_what_the_template_renders(template: Renderer) -> None:
    for item in served(NUM_ITEMS):
        asked = as_messages(item)[: -3 if item.turns[-1].tool else -1]
        rendered = template.render(
            parse_messages(asked), tools=parse_tools(as_tools(item)), enable_thinking=item.thinking
        )
        assert rendered.text == prompt(item)


def as_messages(item: Dialogue) -> list[dict[str, object]]:
    """The dialogue as an OpenAI client sends it."""
    messages: list[dict[str, object]] = []
    if item.system is not None:
        messages.append({"role": "system", "content": item.system})
    for turn in item.turns:
        messages.append({"role": "user", "content": turn.question})
        if turn.tool is not None:
            function = {"name": turn.tool.name, "arguments": dict(turn.tool.arguments)}
            call = {"id": "c", "type": "function", "function": function}
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            if turn.thought is not None:
                messages[-1]["reasoning_content"] = turn.thought
            response = turn.tool.response
            messages.append({"role": "tool", "tool_call_id": "c", "content": response})
        messages.append({"role": "assistant", "content": turn.answer})
    return messages


def as_tools(item: Dialogue) -> list[dict[str, object]]:
    return [{"type": "function", "function": dict(function)} for function in item.tools]


def without_last_thought(item: Dialogue) -> str:
    """Templates show a thought only before a tool call."""
    last = item.turns[-1]
    text = render(item).text
    if last.thought is None or last.tool is not None:
        return text
    return text.replace(f"<|channel>thought\n{last.thought}\n<channel|>", "")


def test_pieces_say_what_is_trained() -> None:
    (item,) = (d for d in dialogues(1) if d.turns)
    trained = "".join(text for text, is_trained in render(item).pieces if is_trained)
    assert trained == "".join(turn.answer + "<turn|>" for turn in item.turns)


def test_stories_follow_their_grammar() -> None:
    for seed in range(50):
        opening, rest = story(Random(seed)).text.split(". ", 1)
        assert follows_grammar(opening + ".", rest)
        assert not follows_grammar(opening + ".", rest.replace("lived", "died", 1))


def test_plain_text_is_trained_whole() -> None:
    assert render(Story("A b.")).pieces == [("<bos>", False), ("A b.<eos>", True)]
