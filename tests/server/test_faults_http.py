"""Faults that people met elsewhere over HTTP, tried here (table: docs/faults.md)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from culet.chat.syntax import CALL_CLOSE, CALL_OPEN, CHANNEL_CLOSE, CHANNEL_OPEN, RESPONSE_OPEN
from culet.chat.template import ChatTemplate
from culet.server.limits import Access
from culet.server.state import ServerState
from support.live_server import serving, state_for

THOUGHT = f"{CHANNEL_OPEN}thought\nhm\n{CHANNEL_CLOSE}"
USER: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"enum": ["yes", "no"]}},
    "required": ["ok"],
    "additionalProperties": False,
}


def script(prompt: str, choice: int) -> str:
    """Says what the last user text asks for after `say `."""
    text = prompt.rpartition("<|turn>user\n")[2].partition("<turn|>")[0].strip()
    said = text.partition("say ")[2].encode().decode("unicode_escape") or "Hello."
    names = {"CALL": f"{CALL_OPEN}call:now{{}}{CALL_CLOSE}", "STOP50": RESPONSE_OPEN}
    for name, spelled in names.items():
        said = said.replace(name, spelled)
    return (THOUGHT if "<|think|>" in prompt or "THINK" in text else "") + said.replace("THINK", "")


@pytest.fixture(scope="module")
def state() -> ServerState:
    return state_for(script)


@pytest.fixture(scope="module")
def http(state: ServerState) -> Iterator[httpx.Client]:
    with serving(state) as url, httpx.Client(base_url=url, timeout=30) as client:
        yield client


def say(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"say {text.encode('unicode_escape').decode()}"}]


def chat(http: httpx.Client, messages: Any = None, **fields: Any) -> Any:
    body = {"messages": USER if messages is None else messages, **fields}
    return http.post("/v1/chat/completions", json=body)


def whole(http: httpx.Client, messages: Any = None, **fields: Any) -> Any:
    answer = chat(http, messages, **fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def chunks(http: httpx.Client, messages: Any = None, **fields: Any) -> list[Any]:
    answer = chat(http, messages, stream=True, **fields)
    assert answer.status_code == 200, answer.text
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return [json.loads(e) for e in events[:-1]]


def joined(parts: list[Any], index: int = 0) -> dict[str, Any]:
    """One streamed choice in the shape of a whole one."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    finish = None
    for part in parts:
        for choice in (c for c in part["choices"] if c["index"] == index):
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    message["tool_calls"].append((call["function"]["name"], ""))
                name, arguments = message["tool_calls"][call["index"]]
                more = call["function"].get("arguments", "")
                message["tool_calls"][call["index"]] = (name, arguments + more)
            finish = choice["finish_reason"] or finish
    return {**message, "finish": finish}


def both(http: httpx.Client, messages: Any, **fields: Any) -> dict[str, Any]:
    """A whole choice, after checking that the streamed one is equal."""
    choice = whole(http, messages, **fields)["choices"][0]
    message = choice["message"]
    flat = {
        "content": message["content"] or "",
        "reasoning_content": message.get("reasoning_content", ""),
        "tool_calls": [
            (c["function"]["name"], c["function"]["arguments"])
            for c in message.get("tool_calls", ())
        ],
        "finish": choice["finish_reason"],
    }
    assert joined(chunks(http, messages, **fields)) == flat
    return flat


def refusal(answer: httpx.Response, field: str) -> str:
    """The message of a 400 that names a field."""
    assert answer.status_code == 400, answer.text
    message: str = answer.json()["error"]["message"]
    assert field in message, message
    return message


# B. Hostile files


@pytest.mark.parametrize(
    "reach",
    [
        "cycler.__init__.__globals__.os.system('touch {}')",
        "''.__class__.__mro__[1].__subclasses__()",
        "messages.__class__.__base__.__subclasses__()",
        "raise_exception.__globals__",
        "(messages|map(attribute='__class__')|list)[0]",
    ],
)
def test_fault_024_templates_that_run_code(reach: str, tmp_path: Path) -> None:
    """On every route that renders one: a 400, and nothing is run."""
    mark = tmp_path / "mark"
    expression = reach.replace("{}", str(mark))
    state = state_for(script)
    source = "{% for m in messages %}{{ " + expression + " }}{% endfor %}"
    state.model = replace(
        state.model, template=ChatTemplate(source, "t", state.model.tokenizer.spelling)
    )
    with serving(state) as url, httpx.Client(base_url=url, timeout=30) as client:
        for path, body in (
            ("/v1/chat/completions", {"messages": USER}),
            ("/v1/chat/completions", {"messages": USER, "stream": True}),
            ("/v1/responses", {"input": "hi"}),
            ("/v1/messages", {"messages": USER, "max_tokens": 5}),
            ("/v1/messages/count_tokens", {"messages": USER}),
            ("/api/chat", {"messages": USER}),
            ("/api/generate", {"prompt": "hi"}),
        ):
            answer = client.post(path, json=body)
            assert answer.status_code == 400 and "template" in answer.text, (path, answer.text)
    assert not mark.exists()


# E. Tokenizer


def test_fault_054_plain_completions_begin_with_bos(state: ServerState, http: httpx.Client) -> None:
    body = {"prompt": "The capital of France is", "max_tokens": 1}
    answer = http.post("/v1/completions", json=body).json()
    ids, bos = state.model.engine.last_ids, state.model.tokenizer.bos_id  # type: ignore[attr-defined]
    assert ids[0] == bos and ids.count(bos) == 1
    assert answer["usage"]["prompt_tokens"] == len(ids)


# G. Roles, messages, template


@pytest.mark.parametrize(
    "arguments, shown",
    [('{"a":1,"s":"x"}', '{a:1,s:<|"|>x<|"|>}'), ("{}", "{}"), ("", "{}"), ({"a": 1}, "{a:1}")],
)
def test_fault_076_arguments_as_text(
    state: ServerState, http: httpx.Client, arguments: Any, shown: str
) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": arguments}}
    history = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "ok"},
    ]
    whole(http, history, tools=[TOOL])
    assert f"call:now{shown}" in state.model.engine.prompts[-1]  # type: ignore[attr-defined]


def test_fault_076_arguments_that_are_no_json(http: httpx.Client) -> None:
    call = {"id": "1", "function": {"name": "now", "arguments": "not json"}}
    history = [*USER, {"role": "assistant", "tool_calls": [call]}]
    refusal(chat(http, history), "messages[1].tool_calls[0].function.arguments")


def test_fault_084_system_alone(http: httpx.Client) -> None:
    assert whole(http, [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]}])


def test_fault_085_pictures_in_tool_results_are_refused(http: httpx.Client) -> None:
    call = {"id": "1", "function": {"name": "now", "arguments": "{}"}}
    parts = [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    history = [
        *USER,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": parts},
    ]
    refusal(chat(http, history, tools=[TOOL]), "messages[2].content[1]")


@pytest.mark.parametrize("effort", ["none", "high"])
def test_fault_092_continuing_an_assistant_message(
    state: ServerState, http: httpx.Client, effort: str
) -> None:
    history = [*USER, {"role": "assistant", "content": "Once upon "}]
    answer = whole(http, history, continue_final_message=True, reasoning_effort=effort)
    prompt = state.model.engine.prompts[-1]  # type: ignore[attr-defined]
    assert prompt.endswith("<|turn>model\nOnce upon ")
    assert not answer["choices"][0]["message"]["content"].startswith("Once")
    whole(http, history)
    assert state.model.engine.prompts[-1].endswith("<|turn>model\n")  # type: ignore[attr-defined]
    refusal(chat(http, USER, continue_final_message=True), "continue_final")


# H. Thinking


@pytest.mark.parametrize("tools", [[TOOL], None])
@pytest.mark.parametrize("effort", ["none", "low"])
def test_fault_097_both_modes_split_alike(http: httpx.Client, tools: Any, effort: str) -> None:
    got = both(http, say("okCALL"), reasoning_effort=effort, tools=tools)
    assert got["reasoning_content"] == ("hm" if effort == "low" else "")
    if tools is None:
        assert got["content"] == f"ok{CALL_OPEN}call:now{{}}{CALL_CLOSE}"
        assert got["finish"] == "stop"
    else:
        assert (got["content"], got["tool_calls"], got["finish"]) == (
            "ok",
            [("now", "{}")],
            "tool_calls",
        )


def test_fault_101_one_place_decides_on_thinking(state: ServerState, http: httpx.Client) -> None:
    asked: dict[str, tuple[Any, bool]] = {
        "nothing": ({}, False),
        "true": ({"chat_template_kwargs": {"enable_thinking": True}}, True),
        "false": ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        "none": ({"reasoning_effort": "none"}, False),
        "low": ({"reasoning_effort": "low"}, True),
    }
    for name, (fields, thinks) in asked.items():
        form = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
        got = both(http, USER, response_format=form, seed=3, **fields)
        prompt = state.model.engine.prompts[-1]  # type: ignore[attr-defined]
        assert ("<|think|>" in prompt) is thinks, name
        assert bool(got["reasoning_content"]) is thinks, name
        assert json.loads(got["content"])["ok"] in ("yes", "no"), name
    refusal(chat(http, reasoning_effort="very"), "reasoning_effort")
    refusal(chat(http, chat_template_kwargs={"other": 1}), "chat_template_kwargs")


def test_fault_102_a_thought_nobody_asked_for(http: httpx.Client) -> None:
    got = both(http, say("THINK\n\nHello"), reasoning_effort="none")
    assert (got["reasoning_content"], got["content"]) == ("hm", "Hello")
    body = {"messages": say("THINKHello"), "max_tokens": 50}
    blocks = http.post("/v1/messages", json=body).json()["content"]
    assert [b["type"] for b in blocks] == ["text"]


# I. Tools


@pytest.mark.parametrize("parallel, count", [(False, 1), (True, 4)])
def test_fault_118_one_call_where_one_is_allowed(
    http: httpx.Client, parallel: bool, count: int
) -> None:
    got = both(http, say("CALLCALLCALLCALL"), tools=[TOOL], parallel_tool_calls=parallel)
    assert len(got["tool_calls"]) == count and got["finish"] == "tool_calls"
    calls = whole(http, say("CALLCALL"), tools=[TOOL])["choices"][0]["message"]["tool_calls"]
    assert len({c["id"] for c in calls}) == 2


def test_fault_120_the_response_marker_ends_the_answer(
    state: ServerState, http: httpx.Client
) -> None:
    got = both(http, say("CALLSTOP50STOP50"), tools=[TOOL])
    assert got["finish"] == "tool_calls" and got["content"] == ""
    tokenizer = state.model.tokenizer
    spelled = {tokenizer.token_bytes(i) for i in tokenizer.stop_ids}
    assert {b"<eos>", b"<turn|>", b"<|tool_response>"} <= spelled


@pytest.mark.parametrize("limit", [1, 3, 5])
def test_fault_122_cut_off_inside_a_call(http: httpx.Client, limit: int) -> None:
    got = both(http, say("CALL"), tools=[TOOL], max_tokens=limit)
    assert got["finish"] == "length" and got["tool_calls"] == []


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "now"}}])
def test_tool_choice_is_enforced(http: httpx.Client, choice: Any) -> None:
    got = both(http, say("no call"), tools=[TOOL], tool_choice=choice, seed=1)
    assert got["tool_calls"][0] == ("now", "{}") and got["finish"] == "tool_calls"


def test_tool_choice_that_cannot_be(http: httpx.Client) -> None:
    named = {"type": "function", "function": {"name": "other"}}
    refusal(chat(http, tools=[TOOL], tool_choice=named), "other")
    refusal(chat(http, tool_choice="required"), "tool_choice")
    refusal(chat(http, tools=[TOOL, TOOL]), "now")


# J. Stops


@pytest.mark.parametrize(
    "stops, wanted",
    [
        (["azy d"], "The l"),
        (["\n\nQ:"], "The lazy dog.\n"),
        (["é"], "The lazy dog.\n\n\nQ: caf"),
        (["dog.\n\n\n\n", "dog.\n\n", "dog.\n", "dog."], "The lazy "),
    ],
)
def test_fault_129_stop_strings(http: httpx.Client, stops: list[str], wanted: str) -> None:
    text = "The lazy dog.\n\n\nQ: café"
    got = both(http, say("THINK" + text), stop=stops, reasoning_effort="low")
    assert (got["content"], got["finish"]) == (wanted, "stop")
    assert got["reasoning_content"] == "hm"  # thoughts are not searched
    plain = {"prompt": f"<|turn>user\nsay {text.encode('unicode_escape').decode()}", "stop": stops}
    answer = http.post("/v1/completions", json={**plain, "max_tokens": 100}).json()["choices"][0]
    assert (answer["text"], answer["finish_reason"]) == (wanted, "stop")


# K. JSON


@pytest.mark.parametrize("thinking", [None, True, False])
def test_fault_131_schema_with_and_without_thinking(http: httpx.Client, thinking: Any) -> None:
    options = {} if thinking is None else {"think": thinking}
    messages = [{"role": "system", "content": "s"}, *USER]
    for stream in (True, False):
        body = {"messages": messages, "format": SCHEMA, "stream": stream, **options}
        lines = http.post("/api/chat", json=body).text.splitlines()
        content = "".join(json.loads(line)["message"]["content"] for line in lines)
        assert json.loads(content)["ok"] in ("yes", "no")


@pytest.mark.parametrize(
    "form, works",
    [
        ({"type": "text"}, True),
        ({"type": "json_object"}, True),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}, True),
        ({"type": "json_schema", "json_schema": {"schema": json.dumps(SCHEMA)}}, True),
        ({"type": "json_schema", "json_schema": {"schema": SCHEMA, "strict": True}}, True),
        ({"type": "structural_tag"}, False),
        ({"type": "json_schema"}, False),
        ({"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}, False),
        ({"type": "json_schema", "json_schema": {"schema": "{"}}, False),
        ({"type": "regex", "regex": "(["}, False),
    ],
)
def test_fault_135_formats_are_enforced_or_refused(
    http: httpx.Client, form: dict[str, Any], works: bool
) -> None:
    if not works:
        refusal(chat(http, response_format=form), "response_format")
        return
    answer = whole(http, response_format=form, max_tokens=400, seed=5)["choices"][0]
    if form["type"] == "json_schema":
        assert json.loads(answer["message"]["content"])["ok"] in ("yes", "no")
    elif form["type"] == "json_object":
        assert answer["message"]["content"].startswith("{")


# L. HTTP and streaming


def test_fault_136_characters_split_over_tokens(http: httpx.Client) -> None:
    text = "🇩🇪 👨‍👩‍👧 ď 漢字 𐍈"
    assert both(http, say(text))["content"] == text
    for part in chunks(http, say(text)):
        assert "\ufffd" not in json.dumps(part, ensure_ascii=False)


@pytest.mark.parametrize("text", ["the quick brown fox", "敏捷的棕色狐狸"])
def test_fault_138_about_one_chunk_per_token(http: httpx.Client, text: str) -> None:
    parts = [c["choices"][0]["delta"] for c in chunks(http, say(text))][1:-1]
    contents = [p["content"] for p in parts]
    assert all(contents)
    assert len(contents) >= len(text) // 3


@pytest.mark.parametrize("include", [True, False, None])
@pytest.mark.parametrize("n", [1, 2])
def test_fault_139_usage_in_streams(http: httpx.Client, include: bool | None, n: int) -> None:
    fields = {} if include is None else {"stream_options": {"include_usage": include}}
    parts = chunks(http, say("one two"), n=n, **fields)
    with_usage = [p for p in parts if p.get("usage")]
    if not include:
        assert not with_usage and all(p["choices"] for p in parts)
        return
    assert parts[-1] is with_usage[0] and len(with_usage) == 1 and parts[-1]["choices"] == []
    assert parts[-2]["choices"][0]["finish_reason"]
    assert parts[-1]["usage"] == whole(http, say("one two"), n=n)["usage"]


def test_fault_141_logprobs_have_true_bytes(http: httpx.Client) -> None:
    text = "a 👨‍👩‍👧 b"
    content = whole(http, say(text), logprobs=True, top_logprobs=5)["choices"][0]["logprobs"][
        "content"
    ]
    assert b"".join(bytes(t["bytes"]) for t in content).decode() == text
    assert any(t["token"] == "\ufffd" and len(t["bytes"]) == 1 for t in content)
    assert all(len(t["top_logprobs"]) == 5 for t in content)


@pytest.mark.parametrize(
    "fields, named",
    [
        ({"logit_bias": {"word": -5}}, "logit_bias"),
        ({"logit_bias": {"5": 1000}}, "logit_bias"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"top_k": -5}, "top_k"),
        ({"seed": "x"}, "seed"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"messages": "hi"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"functions": [{}]}, "functions"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"top_logprobs": 3}, "top_logprobs"),
    ],
)
def test_fault_143_bad_parameters(http: httpx.Client, fields: dict[str, Any], named: str) -> None:
    refusal(http.post("/v1/chat/completions", json={"messages": USER, **fields}), named)
    assert whole(http)["choices"][0]["message"]["content"] == "Hello."


def test_fault_143_harmless_and_unknown_parameters(http: httpx.Client) -> None:
    assert chat(http, logit_bias={}, stop=["x"] * 5, top_k=-1).status_code == 200
    answer = chat(http, frobnicate=1, user="me", temperature=None)
    assert answer.status_code == 200
    assert answer.headers["x-culet-ignored"] == "frobnicate, user"


@pytest.mark.parametrize("n", [0, 1000, -1])
def test_fault_145_how_many_choices(http: httpx.Client, n: int) -> None:
    refusal(chat(http, n=n), "n is")


def test_fault_145_two_choices_in_both_modes(state: ServerState, http: httpx.Client) -> None:
    for fields in ({}, {"temperature": 0}, {"seed": 1}):
        answer = whole(http, n=2, **fields)
        assert [c["index"] for c in answer["choices"]] == [0, 1]
        parts = chunks(http, n=2, **fields)
        for index in (0, 1):
            streamed = joined(parts, index)
            assert streamed["content"] == answer["choices"][index]["message"]["content"]
        alone = whole(http, **fields)["usage"]["completion_tokens"]
        assert answer["usage"]["completion_tokens"] == 2 * alone


def test_fault_146_prompts_that_do_not_fit(state: ServerState, http: httpx.Client) -> None:
    length = state.model.context_length
    for num_tokens, works in ((length - 1, True), (length, False), (length + 1, False)):
        answer = http.post("/v1/completions", json={"prompt": [5] * num_tokens, "max_tokens": 1})
        assert (answer.status_code == 200) is works
        if not works:
            error = answer.json()["error"]
            assert error["code"] == "context_length_exceeded"
            assert str(num_tokens) in error["message"] and str(length) in error["message"]
    history = [{"role": "user", "content": "word " * 5000}]
    assert chat(http, history).json()["error"]["code"] == "context_length_exceeded"
    for path, body in (
        ("/v1/messages", {"messages": history, "max_tokens": 5}),
        ("/api/chat", {"messages": history}),
        ("/v1/responses", {"input": "word " * 5000}),
    ):
        assert http.post(path, json=body).status_code == 400


def test_fault_147_browsers() -> None:
    origin = "https://app.example"
    state = state_for(script)
    state.access = Access(keys=("k",), origins=frozenset({origin}))
    with serving(state) as url, httpx.Client(base_url=url) as http:
        asked = {"origin": origin, "access-control-request-headers": "x-a, authorization"}
        preflight = http.options("/v1/chat/completions", headers=asked)
        assert preflight.status_code == 204
        assert preflight.headers["access-control-allow-origin"] == origin
        assert preflight.headers["access-control-allow-headers"] == "x-a, authorization"
        body = {"messages": USER}
        wrong = {"origin": origin, "authorization": "Bearer no"}
        right = {"origin": origin, "authorization": "Bearer k"}
        cases = [(wrong, body, 401), (right, {"messages": 1}, 400), (right, body, 200)]
        for headers, sent, status in cases:
            answer = http.post("/v1/chat/completions", json=sent, headers=headers)
            assert answer.status_code == status
            assert answer.headers["access-control-allow-origin"] == origin
            assert "access-control-allow-credentials" not in answer.headers
        other = {"origin": "https://evil.example", "authorization": "Bearer k"}
        assert http.post("/v1/chat/completions", json=body, headers=other).status_code == 403
        assert "access-control-allow-origin" not in http.options("/", headers=other).headers


@pytest.mark.parametrize(
    "link",
    [
        "http://127.0.0.1:1/x",
        "http://169.254.169.254/",
        "file:///etc/passwd",
        "https://example.org/a",
    ],
)
def test_fault_151_no_media_is_fetched(http: httpx.Client, link: str) -> None:
    part = {"type": "image_url", "image_url": {"url": link}}
    refusal(chat(http, [{"role": "user", "content": [part]}]), "text-only")


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "audio_url", "video_url", "smell"])
def test_fault_170_media_are_refused_by_type(http: httpx.Client, kind: str) -> None:
    message = refusal(
        chat(http, [{"role": "user", "content": [{"type": kind, kind: {}}]}]), f"{kind!r}"
    )
    assert "messages[0].content[0]" in message and "text-only" in message


def test_fault_165_and_174_every_dialect_refuses_media(http: httpx.Client) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    audio = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
    cases: list[tuple[str, Any]] = [
        ("/v1/messages", {"messages": [{"role": "user", "content": [image]}], "max_tokens": 5}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [audio]}]}),
        ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
        ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": ["aa"]}]}),
        ("/api/generate", {"prompt": "x", "images": ["aa"]}),
    ]
    for path, body in cases:
        answer = http.post(path, json=body)
        assert answer.status_code == 400 and "text-only" in answer.text, path
