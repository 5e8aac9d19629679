"""The built-in renderers against templates, on generated conversations."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from culet.chat.gemma3 import Gemma3Renderer
from culet.chat.gemma4 import Gemma4Renderer, strip_thoughts
from culet.chat.messages import parse_messages, parse_tools
from culet.chat.prompt import ControlSpelling
from culet.chat.template import ChatTemplate, Renderer
from culet.errors import RequestError
from culet.formats.gguf import open_gguf

SHARED = Path(os.environ.get("CULET_SHARED", Path(__file__).parents[3] / "shared"))
VOCABULARY = SHARED / "data" / "ggml-vocab-gemma-4.gguf"

SPELLING4 = ControlSpelling(
    "<bos>", "<eos>", frozenset({"<bos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>"})
)
SPELLING3 = ControlSpelling(
    "<bos>", "<eos>", frozenset({"<bos>", "<start_of_turn>", "<end_of_turn>"})
)

# Written from the description of the format, for machines without an official template.
GEMMA4 = """{{ bos_token }}
{%- set turns = messages %}
{%- set leads = messages[0].role in ['system', 'developer'] %}
{%- if leads or enable_thinking %}{{ '<|turn>system\n' }}
{%- if enable_thinking %}{{ '<|think|>\n' }}{% endif %}
{%- if leads %}{{ messages[0].content | trim }}{% set turns = messages[1:] %}{% endif %}
{{- '<turn|>\n' }}{% endif %}
{%- for m in turns %}
{%- set answers = m.role == 'assistant' %}
{%- if not (answers and not loop.first and loop.previtem.role == 'assistant') %}
{{- '<|turn>' + ('model' if answers else m.role) + '\n' }}{% endif %}
{%- if m.content is string %}{{ m.content | trim }}
{%- else %}{% for part in m.content %}{{ part.text | trim }}{% endfor %}{% endif %}
{{- '<turn|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|turn>model\n' }}
{{- no_thought if not enable_thinking }}{% endif %}"""

GEMMA3 = """{{ bos_token }}
{%- set first = 1 if messages[0].role in ['system', 'developer'] else 0 %}
{%- for m in messages[first:] %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' }}
{%- if loop.first and first %}{{ messages[0].content + '\n\n' }}{% endif %}
{%- if m.content is string %}{{ m.content | trim }}
{%- else %}{% for part in m.content %}{{ part.text | trim }}{% endfor %}{% endif %}
{{- '<end_of_turn>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""

_FRAGMENTS = (
    "hi", "  pad ", "\n\n", "", "Grüße", "漢字", "🙂", "a < b > c", "<b>x</b>", "`code`\n\tx",
    "\u2003em\u2003", "x" * 50, "don't", " \t ", "\r\n", "\u200b", "\x1c", "{{ x }}", "{% if %}",
)  # fmt: skip
_THOUGHTS = ("<|channel>thought\nhm<channel|>", "<|channel>", "<channel|>")


def conversations(
    count: int, seed: int, repeats_answers: bool = True, thoughts: bool = False
) -> Iterator[list[dict[str, Any]]]:
    """Plain conversations of all roles in any order; system content is always one string."""
    rng = random.Random(seed)
    for _ in range(count):
        messages: list[dict[str, Any]] = []
        for _ in range(rng.randint(1, 7)):
            role = rng.choice(("system", "developer", "user", "user", "assistant", "assistant"))
            if not repeats_answers and messages and role == messages[-1]["role"] == "assistant":
                role = "user"
            fragments = _FRAGMENTS + (_THOUGHTS if thoughts and role == "assistant" else ())

            def text(fragments: tuple[str, ...] = fragments) -> str:
                return "".join(rng.choices(fragments, k=rng.randint(0, 4)))

            content: Any = text()
            if role in ("user", "assistant") and rng.random() < 0.3:
                parts = range(rng.randint(0, 3))
                content = [{"type": "text", "text": text()} for _ in parts]
            messages.append({"role": role, "content": content})
        yield messages


def assert_equal(
    ours: Renderer, theirs: Renderer, messages: list[dict[str, Any]], **options: bool
) -> None:
    parsed = parse_messages(messages)
    assert ours.render(parsed, **options).text == theirs.render(parsed, **options).text, messages


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("empty_thought", [True, False])
def test_gemma4(empty_thought: bool, thinking: bool) -> None:
    mark = "<|channel>thought\n<channel|>" if empty_thought else ""
    source = GEMMA4.replace("no_thought", repr(mark))
    template = ChatTemplate(source, "test", SPELLING4)
    for messages in conversations(300, 1):
        assert_equal(Gemma4Renderer(empty_thought), template, messages, enable_thinking=thinking)
        assert_equal(Gemma4Renderer(empty_thought), template, messages, add_generation_prompt=False)


@pytest.mark.skipif(not VOCABULARY.exists(), reason="the real template is not at hand")
def test_gemma4_against_the_template_of_the_26b() -> None:
    checkpoint = open_gguf(VOCABULARY, header_only=True)
    source = checkpoint.metadata["tokenizer.chat_template"]
    template = ChatTemplate(source, VOCABULARY.name, SPELLING4)
    # This early template begins a new model's turn where answers follow one another.
    for messages in conversations(400, 2, repeats_answers=False, thoughts=True):
        assert_equal(Gemma4Renderer(has_empty_thought=True), template, messages)
    checkpoint.close()


def test_gemma3() -> None:
    template = ChatTemplate(GEMMA3, "test", SPELLING3)
    rng = random.Random(3)
    for messages in conversations(300, 3):
        roles = ["system"] if rng.random() < 0.5 else []
        roles += ["user", "assistant"] * 4
        for message, role in zip(messages, roles, strict=False):
            message["role"] = role
            if role == "system" and not isinstance(message["content"], str):
                message["content"] = "s"
        if len(messages) == 1 and messages[0]["role"] == "system":
            messages.append({"role": "user", "content": "u"})
        assert_equal(Gemma3Renderer(), template, messages)
        assert_equal(Gemma3Renderer(), template, messages, add_generation_prompt=False)


def test_gemma3_puts_instructions_before_the_first_text() -> None:
    parts = [{"type": "text", "text": "be"}, {"type": "text", "text": "brief"}]
    messages = [{"role": "system", "content": parts}, {"role": "user", "content": " hi "}]
    text = Gemma3Renderer().render(parse_messages(messages)).text
    assert text == (
        "<bos><start_of_turn>user\nbe\nbrief\n\nhi<end_of_turn>\n<start_of_turn>model\n"
    )


@pytest.mark.parametrize(
    ("roles", "field"),
    [
        (["system"], "messages"),
        (["assistant"], "messages[0].role"),
        (["user", "user"], "messages[1].role"),
        (["system", "user", "assistant", "system"], "messages[3].role"),
    ],
)
def test_gemma3_wants_turns_to_alternate(roles: list[str], field: str) -> None:
    messages = parse_messages([{"role": r, "content": "x"} for r in roles])
    with pytest.raises(RequestError) as caught:
        Gemma3Renderer().render(messages)
    assert caught.value.field == field


def test_gemma3_does_not_think() -> None:
    messages = parse_messages([{"role": "user", "content": "x"}])
    with pytest.raises(RequestError, match="enable_thinking: this model has no thinking mode"):
        Gemma3Renderer().render(messages, enable_thinking=True)


def test_gemma3_refuses_tools() -> None:
    renderer = Gemma3Renderer()
    messages = [{"role": "user", "content": "x"}]
    call = {"function": {"name": "f", "arguments": {}}}
    tools = parse_tools([{"function": {"name": "f"}}])
    with pytest.raises(RequestError, match="^tools: the file has no chat template"):
        renderer.render(parse_messages(messages), tools=tools)
    with pytest.raises(RequestError, match=r"^messages\[1\].tool_calls: must be empty"):
        renderer.render(parse_messages([*messages, {"role": "assistant", "tool_calls": [call]}]))
    with pytest.raises(RequestError, match=r"^messages\[1\].role: is 'tool'"):
        renderer.render(parse_messages([*messages, {"role": "tool", "content": "y"}]))


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ("plain", "plain"),
        ("<|channel>thought\nhm<channel|>so", "so"),
        ("a<|channel>hm<channel|>b<|channel>hm<channel|>c", "abc"),
        ("a<|channel>never ends", "a"),
        ("a<channel|>b", "ab"),
        ("", ""),
    ],
)
def test_thoughts_are_taken_out_of_answers(answer: str, shown: str) -> None:
    assert strip_thoughts(answer) == shown
