"""The official Python clients drive every route, streamed and whole, over a real socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest

from culet.chat.syntax import CALL_CLOSE, CALL_OPEN, CHANNEL_CLOSE, CHANNEL_OPEN, QUOTE
from support.live_server import serving, state_for

ANSWER = "Grüße 😀 from here."
THOUGHT = f"{CHANNEL_OPEN}thought\nLet me see.\n{CHANNEL_CLOSE}"
CALLS = (
    f"{CALL_OPEN}call:weather{{city:{QUOTE}Köln{QUOTE},days:2}}{CALL_CLOSE}"
    f"{CALL_OPEN}call:now{{}}{CALL_CLOSE}"
)
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now", "parameters": {}}},
]
HELLO: list[Any] = [{"role": "user", "content": "hi"}]


def script(prompt: str, choice: int) -> str:
    text = CALLS if "<|tool>" in prompt and "tool_response" not in prompt else ANSWER
    return (THOUGHT if "<|think|>" in prompt else "") + text + (f" {choice}" if choice else "")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(state_for(script)) as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def claude(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def llama(url: str) -> Iterator[ollama.Client]:
    made = ollama.Client(host=url)
    yield made
    made._client.close()  # the only way there is


@pytest.mark.parametrize("effort", ["none", "high"])
def test_openai_chat(client: openai.OpenAI, effort: Any) -> None:
    options: Any = {"model": "any", "messages": HELLO, "reasoning_effort": effort}
    whole = client.chat.completions.create(**options)
    (choice,) = whole.choices
    thoughts = "Let me see." if effort == "high" else None
    assert choice.message.content == ANSWER
    assert getattr(choice.message, "reasoning_content", None) == thoughts
    assert choice.finish_reason == "stop"
    usage = whole.usage
    assert usage is not None and usage.completion_tokens_details is not None
    assert (usage.completion_tokens_details.reasoning_tokens or 0) == (16 if thoughts else 0)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens

    chunks = list(
        client.chat.completions.create(
            **options, stream=True, stream_options={"include_usage": True}
        )
    )
    deltas = [c.choices[0].delta for c in chunks if c.choices]
    assert "".join(d.content or "" for d in deltas) == ANSWER
    streamed = "".join(getattr(d, "reasoning_content", None) or "" for d in deltas)
    assert streamed == (thoughts or "")
    assert chunks[-1].usage == usage and not chunks[-1].choices
    assert chunks[-2].choices[0].finish_reason == "stop"


def test_openai_tools(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="any", messages=HELLO, tools=TOOLS)
    message = whole.choices[0].message
    assert whole.choices[0].finish_reason == "tool_calls" and message.content is None
    calls = message.tool_calls or []
    functions = [c.function for c in calls if c.type == "function"]
    assert [f.name for f in functions] == ["weather", "now"]
    assert [json.loads(f.arguments) for f in functions] == [{"city": "Köln", "days": 2}, {}]
    assert len({c.id for c in calls}) == 2

    results = [{"role": "tool", "tool_call_id": c.id, "content": "sunny"} for c in calls]
    messages: Any = [*HELLO, message.model_dump(exclude_none=True), *results]
    again = client.chat.completions.create(model="any", messages=messages, tools=TOOLS)
    assert again.choices[0].message.content == ANSWER


def test_openai_streaming_helper(client: openai.OpenAI) -> None:
    tools: Any = [{**t, "function": {**t["function"], "strict": True}} for t in TOOLS]
    with client.chat.completions.stream(model="any", messages=HELLO, tools=tools) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert kinds.count("tool_calls.function.arguments.done") == 2
    calls = final.choices[0].message.tool_calls or []
    assert [c.function.name for c in calls] == ["weather", "now"]
    with client.chat.completions.stream(model="any", messages=HELLO) as stream:
        text = [e.delta for e in stream if e.type == "content.delta"]
    assert "".join(text) == ANSWER and len(text) > 5


def test_openai_choices_and_logprobs(client: openai.OpenAI) -> None:
    options: Any = {
        "model": "any",
        "messages": HELLO,
        "n": 2,
        "logprobs": True,
        "top_logprobs": 2,
        "seed": 1,
    }
    whole = client.chat.completions.create(**options)
    assert [c.message.content for c in whole.choices] == [ANSWER, f"{ANSWER} 1"]
    for choice in whole.choices:
        assert choice.logprobs is not None and choice.logprobs.content is not None
        data = b"".join(bytes(t.bytes or []) for t in choice.logprobs.content)
        assert data.decode() == choice.message.content
        assert all(len(t.top_logprobs) == 2 for t in choice.logprobs.content)
    texts, tokens = ["", ""], [0, 0]
    for chunk in client.chat.completions.create(**options, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            entries = choice.logprobs.content if choice.logprobs else None
            tokens[choice.index] += len(entries or [])
    assert texts == [c.message.content for c in whole.choices]
    assert tokens == [len(c.logprobs.content or []) for c in whole.choices if c.logprobs]


def test_openai_structured_output(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    schema["additionalProperties"] = False
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    whole = client.chat.completions.create(model="any", messages=HELLO, response_format=form)
    assert set(json.loads(whole.choices[0].message.content or "")) == {"ok"}


def test_openai_completions(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="any", prompt="Once", max_tokens=100)
    assert whole.choices[0].text == ANSWER and whole.choices[0].finish_reason == "stop"
    parts = client.completions.create(model="any", prompt="Once", max_tokens=100, stream=True)
    assert "".join(p.choices[0].text for p in parts) == ANSWER
    several = client.completions.create(model="any", prompt=["a", "b"], n=2, max_tokens=100)
    assert [(c.index, c.text) for c in several.choices] == [
        (0, ANSWER),
        (1, f"{ANSWER} 1"),
        (2, ANSWER),
        (3, f"{ANSWER} 1"),
    ]
    ids = client.completions.create(model="any", prompt=[[5, 6], [7]], max_tokens=1)
    assert len(ids.choices) == 2 and ids.choices[0].finish_reason == "length"


@pytest.mark.parametrize("stream", [True, False])
def test_openai_completions_echo(client: openai.OpenAI, stream: bool) -> None:
    options: Any = {"model": "any", "prompt": "ab", "echo": True, "logprobs": 1, "max_tokens": 3}
    if stream:
        parts = [p.choices[0] for p in client.completions.create(**options, stream=True)]
        text = "".join(p.text for p in parts)
        tokens = [t for p in parts if p.logprobs for t in p.logprobs.tokens or []]
        offsets = [o for p in parts if p.logprobs for o in p.logprobs.text_offset or []]
    else:
        (choice,) = client.completions.create(**options).choices
        assert choice.logprobs is not None
        text, tokens = choice.text, choice.logprobs.tokens or []
        offsets = choice.logprobs.text_offset or []
        assert (choice.logprobs.token_logprobs or [0.0])[0] is None
    assert text == "abGrü" and tokens == ["<bos>", "a", "b", "G", "r", "ü"]
    assert offsets == [0, 5, 6, 7, 8, 9]


def test_openai_responses(client: openai.OpenAI) -> None:
    whole = client.responses.create(model="any", input="hi", reasoning={"effort": "high"})
    assert whole.output_text == ANSWER and whole.status == "completed"
    assert [item.type for item in whole.output] == ["reasoning", "message"]
    tools: Any = [{"type": "function", **t["function"]} for t in TOOLS]
    called = client.responses.create(model="any", input="hi", tools=tools)
    calls = [i for i in called.output if i.type == "function_call"]
    assert [c.name for c in calls] == ["weather", "now"]
    history: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        *(c.model_dump(exclude_none=True) for c in calls),
        *({"type": "function_call_output", "call_id": c.call_id, "output": "ok"} for c in calls),
    ]
    again = client.responses.create(model="any", input=history, tools=tools)
    assert again.output_text == ANSWER


@pytest.mark.parametrize("effort, limit", [("none", None), ("high", None), ("none", 4)])
def test_openai_responses_stream(client: openai.OpenAI, effort: Any, limit: int | None) -> None:
    options: Any = {"model": "any", "input": "hi", "reasoning": {"effort": effort}}
    if limit is not None:
        options["max_output_tokens"] = limit
    whole = client.responses.create(**options)
    with client.responses.stream(**options) as stream:
        events = list(stream)
    final: Any = events[-1].response if limit else stream.get_final_response()
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert final.output_text == whole.output_text and final.status == whole.status
    assert final.usage == whole.usage
    assert events[-1].type == ("response.incomplete" if limit else "response.completed")


def test_openai_embeddings_and_models(client: openai.OpenAI) -> None:
    both = client.embeddings.create(model="any", input=["a", "b"]).data
    alone = client.embeddings.create(model="any", input="b", encoding_format="float").data
    assert both[1].embedding == pytest.approx(alone[0].embedding, abs=1e-7)
    assert sum(x * x for x in both[0].embedding) == pytest.approx(1.0, abs=1e-5)
    assert [m.id for m in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_anthropic_messages(claude: anthropic.Anthropic) -> None:
    options: Any = {"model": "any", "max_tokens": 200, "messages": HELLO, "system": "Be brief."}
    plain = claude.messages.create(**options)
    assert [b.type for b in plain.content] == ["text"]
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    whole = claude.messages.create(**options, thinking=thinking)
    assert [b.type for b in whole.content] == ["thinking", "text"]
    assert whole.stop_reason == "end_turn"
    with claude.messages.stream(**options, thinking=thinking) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(pieces) == ANSWER and len(pieces) > 5
    assert [b.to_dict() for b in final.content] == [
        {**b.to_dict(), **({"parsed_output": None} if b.type == "text" else {})}
        if "parsed_output" in f.to_dict()
        else b.to_dict()
        for b, f in zip(whole.content, final.content, strict=True)
    ]
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_anthropic_tools(claude: anthropic.Anthropic) -> None:
    tools: Any = [
        {"name": "weather", "description": "w", "input_schema": WEATHER},
        {"name": "now", "input_schema": {"type": "object"}},
    ]
    options: Any = {"model": "any", "max_tokens": 200, "tools": tools}
    whole = claude.messages.create(**options, messages=HELLO)
    uses = [b for b in whole.content if b.type == "tool_use"]
    assert whole.stop_reason == "tool_use"
    assert [(b.name, b.input) for b in uses] == [
        ("weather", {"city": "Köln", "days": 2}),
        ("now", {}),
    ]
    with claude.messages.stream(**options, messages=HELLO) as stream:
        final = stream.get_final_message()
    streamed = [b for b in final.content if b.type == "tool_use"]
    assert [(b.name, b.input) for b in streamed] == [(b.name, b.input) for b in uses]
    results = [{"type": "tool_result", "tool_use_id": b.id, "content": "ok"} for b in uses]
    messages: Any = [
        *HELLO,
        {"role": "assistant", "content": [b.to_dict() for b in whole.content]},
        {"role": "user", "content": results},
    ]
    again = claude.messages.create(**options, messages=messages)
    assert [b.to_dict()["text"] for b in again.content] == [ANSWER]
    one = claude.messages.create(
        **options,
        messages=HELLO,
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
    )
    assert [b.type for b in one.content] == ["tool_use"]


def test_anthropic_stop_and_count(claude: anthropic.Anthropic) -> None:
    options: Any = {"model": "any", "max_tokens": 200, "messages": HELLO}
    stopped = claude.messages.create(**options, stop_sequences=[" from"])
    assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == " from"
    assert [b.to_dict()["text"] for b in stopped.content] == ["Grüße 😀"]
    cut = claude.messages.create(model="any", max_tokens=2, messages=HELLO)
    assert cut.stop_reason == "max_tokens"
    count = claude.messages.count_tokens(model="any", messages=HELLO)
    assert count.input_tokens == stopped.usage.input_tokens


def test_ollama_chat(llama: ollama.Client) -> None:
    whole = llama.chat(model="any", messages=HELLO, think=True)
    assert whole.message.content == ANSWER and whole.message.thinking == "Let me see."
    parts = list(llama.chat(model="any", messages=HELLO, think=True, stream=True))
    assert "".join(p.message.content or "" for p in parts) == ANSWER
    assert "".join(p.message.thinking or "" for p in parts) == "Let me see."
    assert parts[-1].done and parts[-1].done_reason == "stop"
    assert parts[-1].eval_count == whole.eval_count
    assert all(not p.done for p in parts[:-1])
    called = llama.chat(model="any", messages=HELLO, tools=TOOLS)
    calls = called.message.tool_calls or []
    assert [(c.function.name, dict(c.function.arguments)) for c in calls] == [
        ("weather", {"city": "Köln", "days": 2}),
        ("now", {}),
    ]
    history: Any = [*HELLO, called.message, {"role": "tool", "tool_name": "now", "content": "1"}]
    assert llama.chat(model="any", messages=history, tools=TOOLS).message.content == ANSWER


def test_ollama_generate_and_the_rest(llama: ollama.Client, url: str) -> None:
    assert llama.generate(model="any", prompt="x", system="s").response == ANSWER
    raw = llama.generate(model="any", prompt="x", raw=True, options={"num_predict": 3}, stream=True)
    last = list(raw)[-1]
    assert last.done_reason == "length" and last.eval_count == 3
    form = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    bound = llama.generate(model="any", prompt="x", format={**form, "additionalProperties": False})
    assert json.loads(bound.response)["a"] in (1, 2)
    both = llama.embed(model="any", input=["a", "b"]).embeddings
    assert len(both) == 2
    alone = llama.embeddings(model="any", prompt="b").embedding
    assert list(alone) == pytest.approx(list(both[1]), abs=1e-7)
    assert llama.list().models[0].model == "tiny"
    assert llama.ps().models[0].model == "tiny"
    details = llama.show("any").details
    assert details is not None and details.family == "gemma4"
    assert llama.generate(model="any", prompt="").done_reason == "load"
    assert httpx.get(f"{url}/api/version").json()["version"]
    with pytest.raises(ollama.ResponseError) as caught:
        llama.pull("x")
    assert caught.value.status_code == 501


def test_tokenize_round_trip(url: str) -> None:
    text = "Grüße <|turn> 😀"
    tokens = httpx.post(f"{url}/tokenize", json={"content": text}).json()["tokens"]
    assert tokens[0] == 2
    body = httpx.post(f"{url}/detokenize", json={"tokens": tokens[1:]}).json()
    assert body["content"] == text
    plain = httpx.post(f"{url}/tokenize", json={"content": text, "parse_special": False}).json()
    assert len(plain["tokens"]) > len(tokens)


def test_pages_and_metrics(url: str) -> None:
    browser = {"accept": "text/html,application/xhtml+xml"}
    assert httpx.get(url).text == "Ollama is running"
    assert httpx.head(url).status_code == 200
    page = httpx.get(url, headers=browser)
    assert page.headers["content-type"].startswith("text/html")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert "culet_http_responses_total" in httpx.get(f"{url}/metrics").text
    assert "/v1/messages" in httpx.get(f"{url}/docs").text
    assert httpx.get(f"{url}/openapi.json").json()["openapi"] == "3.1.0"
    assert httpx.get(f"{url}/health").json() == {"status": "ok"}
