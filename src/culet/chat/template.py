"""Messages to a prompt, by the model's own Jinja template or by a built-in renderer.

What users write can't become a control token. Before rendering, in every string of a request, the
characters at the ends of control tokens (`<` and `>` in Gemma) are replaced one for one by
characters that occur nowhere else; the template may trim, split, slice or join them as it likes.
Afterwards they are put back and remembered as not trusted, and the tokenizer takes no control token
that touches one. Text without control tokens gets the ids that it would have got anyway.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from jinja2 import TemplateError

from culet.chat.files import read_json, read_text
from culet.chat.gemma3 import Gemma3Renderer
from culet.chat.gemma4 import Gemma4Renderer, strip_thoughts
from culet.chat.messages import Message, Role, ToolSpec, require_open_end, system_text
from culet.chat.prompt import ControlSpelling, Prompt
from culet.chat.sandbox import Budget, Sandbox, TemplateRefusal
from culet.chat.syntax import CHANNEL_CLOSE, CHANNEL_OPEN
from culet.errors import ModelFileError, RequestError, UsageError

# Stand-ins come from Unicode's noncharacters (never in interchanged text) and, should a request
# hold those too, from the private planes.
_STAND_INS = (range(0xFDD0, 0xFDF0), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))


class Renderer(Protocol):
    """What turns messages into a prompt."""

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        add_generation_prompt: bool = True,
        enable_thinking: bool = False,
        continue_final: bool = False,
    ) -> Prompt:
        """The prompt of a conversation.

        Args:
            messages: at least one.
            add_generation_prompt: end with the beginning of the assistant's turn.
            enable_thinking: let the model think before it answers, if it can.
            continue_final: end inside the last message, which must be the assistant's, exactly
                after its text, so that the model goes on with it.

        Raises:
            RequestError: the template does not accept these messages, or fails on them.
        """
        ...


class ChatTemplate:
    """A compiled Jinja template.

    Raises:
        ModelFileError: it does not compile; names line and reason.
    """

    def __init__(self, source: str, origin: str, spelling: ControlSpelling) -> None:
        self.source = source
        self.origin = origin
        self._spelling = spelling
        self._sandbox = Sandbox()
        self._template = self._sandbox.compile_template(source, origin)
        # A template that deals with thoughts looks for their marks in earlier answers, where it
        # can't see them once they are replaced; so we take thoughts out before it does.
        self._has_thoughts = CHANNEL_OPEN in source and CHANNEL_CLOSE in source

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        add_generation_prompt: bool = True,
        enable_thinking: bool = False,
        continue_final: bool = False,
    ) -> Prompt:
        """The prompt; see `Renderer.render`."""
        require_open_end(messages, continue_final)
        shown = self._shown_messages(messages)
        shown_tools = [_shown_tool(tool) for tool in tools]
        mask = _Mask(self.source, (shown, shown_tools), self._spelling)
        if continue_final:
            mask.mark_end(shown[-1])
        variables = {
            "messages": mask.hide(shown),
            "tools": mask.hide(shown_tools) or None,
            "add_generation_prompt": add_generation_prompt and not continue_final,
            "enable_thinking": enable_thinking,
            "bos_token": self._spelling.bos,
            "eos_token": self._spelling.eos,
        }
        try:
            text = self._sandbox.run(self._template, variables, Budget(mask.num_chars))
        except TemplateRefusal as error:
            raise RequestError("messages", f"the chat template refuses them: {error}") from error
        except TemplateError as error:
            raise RequestError("messages", f"the chat template fails: {error}") from error
        prompt = mask.reveal(mask.before_end(text) if continue_final else text)
        if not prompt.segments:
            raise RequestError("messages", "the chat template makes no text of them")
        return prompt

    def _shown_messages(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Messages as templates of the Hugging Face kind expect them."""
        last_user = max((i for i, m in enumerate(messages) if m.role is Role.USER), default=-1)
        shown: list[dict[str, Any]] = []
        for index, message in enumerate(messages):
            fields: dict[str, Any] = {"role": message.role.value}
            fields["content"] = self._shown_content(message)
            # Thoughts belong to the model's own work since the user last spoke; older ones only
            # fill the context, and the model has not been trained with them.
            if message.reasoning and index > last_user:
                fields["reasoning_content"] = message.reasoning
            if message.tool_calls:
                fields["tool_calls"] = [
                    {
                        "id": call.call_id,
                        "type": "function",
                        "function": {"name": call.name, "arguments": dict(call.arguments)},
                    }
                    for call in message.tool_calls
                ]
            optional = {"tool_call_id": message.tool_call_id, "name": message.name}
            fields |= {key: value for key, value in optional.items() if value is not None}
            shown.append(fields)
        return shown

    def _shown_content(self, message: Message) -> str | list[dict[str, str]]:
        if message.role in (Role.SYSTEM, Role.DEVELOPER):
            return system_text(message)
        clean: Callable[[str], str] = str
        if message.role is Role.ASSISTANT and self._has_thoughts:
            clean = strip_thoughts
        if isinstance(message.content, str):
            return clean(message.content)
        return [{"type": "text", "text": clean(part.text)} for part in message.content]


def _shown_tool(tool: ToolSpec) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": _without_booleans(dict(tool.parameters)),
    }
    return {"type": "function", "function": function}


def _without_booleans(schema: Any) -> Any:
    """A schema in which no place is `true` or `false`, which templates do not expect there."""
    if not isinstance(schema, Mapping):
        return {} if isinstance(schema, bool) else schema
    shown = dict(schema)
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        shown["properties"] = {k: _without_booleans(v) for k, v in properties.items()}
    if "items" in schema:
        shown["items"] = _without_booleans(schema["items"])
    return shown


class _Mask:
    """Stand-ins for the characters at the ends of control tokens, for one render."""

    def __init__(self, source: str, values: object, spelling: ControlSpelling) -> None:
        used = set(source)
        self.num_chars = 0
        for text in _strings_in(values):
            used.update(text)
            self.num_chars += len(text)
        edges = sorted({c for token in spelling.all for c in _edges(token)})
        free = (chr(c) for block in _STAND_INS for c in block if chr(c) not in used)
        try:
            self._end = next(free)
            self._stand_in = {edge: next(free) for edge in edges}
        except StopIteration:
            raise RequestError("messages", "use up all private characters of Unicode") from None
        self._original = {stand_in: edge for edge, stand_in in self._stand_in.items()}
        self._table = str.maketrans(self._stand_in)

    def hide(self, value: Any) -> Any:
        """A copy of a JSON-like value with stand-ins in all strings, keys included."""
        if isinstance(value, str):
            return value.translate(self._table)
        if isinstance(value, Mapping):
            return {self.hide(k): self.hide(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.hide(v) for v in value]
        return value

    def mark_end(self, message: dict[str, Any]) -> None:
        """Puts a mark behind the text of a message."""
        content = message["content"]
        if isinstance(content, str):
            message["content"] = content + self._end
        elif content:
            content[-1]["text"] += self._end
        else:
            content.append({"type": "text", "text": self._end})

    def before_end(self, text: str) -> str:
        """What was rendered before the mark."""
        if text.count(self._end) != 1:
            raise RequestError(
                "continue_final", "the chat template does not show the last message as it is"
            )
        return text.partition(self._end)[0]

    def reveal(self, text: str) -> Prompt:
        """The prompt with the original characters, those of users not trusted."""
        if not self._original:
            return Prompt.join([(text, True)])
        pieces = re.split(f"([{re.escape(''.join(self._original))}])", text)
        return Prompt.join(
            (self._original[piece], False) if piece in self._original else (piece, True)
            for piece in pieces
        )


def _edges(token: str) -> Iterable[str]:
    """Characters without which `token` can't be spelled: its outermost signs, if it has any."""
    signs = [c for c in token if not c.isalnum()] or list(token)
    return (signs[0], signs[-1])


def _strings_in(value: Any) -> Iterable[str]:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            pending += [*item.keys(), *item.values()]
        elif isinstance(item, (list, tuple)):
            pending += item


def own_template_of_gguf(metadata: Mapping[str, Any], source: str) -> str | None:
    """The template in a GGUF file, None if it has none; `ModelFileError` if it is no text."""
    template = metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise ModelFileError(
            f"{source}: tokenizer.chat_template is {type(template).__name__}, not a string"
        )
    return template or None


def own_template_of_folder(folder: Path) -> str | None:
    """The template of a Hugging Face folder, None if it has none.

    chat_template.jinja wins; then tokenizer_config.json, where a list of named templates may
    stand for the one called `default`. Raises `ModelFileError` for files that can't be read.
    """
    separate = folder / "chat_template.jinja"
    if separate.exists():
        return read_text(separate) or None
    config = folder / "tokenizer_config.json"
    if not config.exists():
        return None
    template = read_json(config).get("chat_template")
    if isinstance(template, list):
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        template = named.get("default")
        if template is None:
            raise ModelFileError(
                f"{config}: chat_template names {sorted(map(str, named))}, but no 'default'"
            )
    if template is not None and not isinstance(template, str):
        raise ModelFileError(
            f"{config}: chat_template is {type(template).__name__}, not a string or list"
        )
    return template or None


def choose_template(
    own: str | None,
    spelling: ControlSpelling,
    *,
    architecture: str,
    has_per_layer_inputs: bool,
    override: Path | None = None,
    source: str = "the model file",
) -> tuple[Renderer, str]:
    """The template to render with, and a sentence for the log on where it comes from.

    A file given by the user goes first, then the model file's own template, then the built-in
    renderer of the architecture.

    Args:
        own: from `own_template_of_gguf` or `own_template_of_folder`.
        architecture: in GGUF's spelling, `gemma4` or `gemma3`.
        has_per_layer_inputs: tells E2B and E4B from their larger siblings.

    Raises:
        UsageError: the override cannot be read.
        ModelFileError: a template does not compile; or there is none and no built-in either.
    """
    if override is not None:
        try:
            text = read_text(override)
        except ModelFileError as error:
            raise UsageError(f"the chat template {error}") from error
        return ChatTemplate(text, str(override), spelling), f"chat template: {override}"
    if own is not None:
        return ChatTemplate(own, source, spelling), f"chat template: from {source}"
    no_turns = "; if it is a base model, have it go on with a text (`culet run --raw`)"
    if architecture == "gemma4":
        name = "E2B and E4B" if has_per_layer_inputs else "the larger models"
        note = f"chat template: {source} has none, so the built-in one of Gemma 4 for {name}"
        return Gemma4Renderer(has_empty_thought=not has_per_layer_inputs), note + no_turns
    if architecture.startswith("gemma3"):
        note = f"chat template: {source} has none, so the built-in one of Gemma 3"
        return Gemma3Renderer(), note + no_turns
    raise ModelFileError(
        f"{source}: there is no chat template, and none is built in for {architecture!r}; give one "
        "with --chat-template"
    )
