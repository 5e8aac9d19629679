"""The corpus: the same every time, nothing evaluated is trained, and its text is what is served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from training.corpus import CATEGORIES, evaluation_item, training_item
from training.corpus.split import in_split, phrasings
from training.corpus.stories import follows_grammar, story
from training.dialogue import Dialogue, Story, prompt, render
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


def test_nothing_evaluated_is_trained() -> None:
    trained = {prompt(item) for item in dialogues(8 * NUM_ITEMS)}
    for category in CATEGORIES:
        for number in range(20):
            assert prompt(evaluation_item(category, number)) not in trained, category


def test_every_category_has_its_items() -> None:
    for category in CATEGORIES:
        items = {prompt(evaluation_item(category, number)) for number in range(20)}
        assert len(items) > 5, category


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
