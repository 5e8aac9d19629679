"""Our own renderer of Gemma 4's dialogue format, for files that carry no template.

Equal to the official template for system, user and model turns. Tools are refused here; files with
a template of their own render them.
"""

from __future__ import annotations

from collections.abc import Sequence

from culet.chat.messages import Message, Role, ToolSpec, require_open_end, system_text
from culet.chat.prompt import Prompt
from culet.chat.syntax import (
    CHANNEL_CLOSE,
    CHANNEL_OPEN,
    THINK,
    THOUGHT_LABEL,
    TURN_CLOSE,
    TURN_OPEN,
)
from culet.errors import RequestError


def strip_thoughts(text: str) -> str:
    """An earlier answer without its thoughts; one that is left open runs to the end."""
    return "".join(part.split(CHANNEL_OPEN)[0] for part in text.split(CHANNEL_CLOSE))


class Gemma4Renderer:
    """`<|turn>role`, newline, text, `<turn|>`, newline; the assistant's role is `model`.

    Args:
        has_empty_thought: whether an answer without thinking begins after an empty thought. The
            12B and larger models are trained so, E2B and E4B are not.
    """

    def __init__(self, has_empty_thought: bool) -> None:
        self.has_empty_thought = has_empty_thought

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        add_generation_prompt: bool = True,
        enable_thinking: bool = False,
        continue_final: bool = False,
    ) -> Prompt:
        """The prompt; arguments and errors as `Renderer.render` in template.py has them."""
        require_open_end(messages, continue_final)
        refuse_tools(messages, tools)
        parts: list[tuple[str, bool]] = [("<bos>", True)]
        turns = list(messages)
        begins_with_system = turns[0].role in (Role.SYSTEM, Role.DEVELOPER)
        if enable_thinking or begins_with_system:
            parts.append((f"{TURN_OPEN}system\n", True))
            if enable_thinking:
                parts.append((f"{THINK}\n", True))
            if begins_with_system:
                parts.append((system_text(turns.pop(0)).strip(), False))
            parts.append((f"{TURN_CLOSE}\n", True))
        previous: Role | None = None
        for turn in turns:
            is_model = turn.role is Role.ASSISTANT
            if not (is_model and previous is Role.ASSISTANT):  # else the model's turn goes on
                parts.append((f"{TURN_OPEN}{'model' if is_model else turn.role}\n", True))
            is_open = continue_final and turn is messages[-1]
            parts += [(text, False) for text in _texts(turn, is_open)]
            if not is_open:
                parts.append((f"{TURN_CLOSE}\n", True))
            previous = turn.role
        if add_generation_prompt and not continue_final:
            parts.append((f"{TURN_OPEN}model\n", True))
            if self.has_empty_thought and not enable_thinking:
                parts.append((f"{CHANNEL_OPEN}{THOUGHT_LABEL}\n{CHANNEL_CLOSE}", True))
        return Prompt.join(parts)


def _texts(turn: Message, is_open: bool) -> list[str]:
    if turn.role in (Role.SYSTEM, Role.DEVELOPER):
        return [system_text(turn).strip()]
    parts = turn.parts
    if turn.role is Role.ASSISTANT:
        parts = tuple(strip_thoughts(part) for part in parts)
    texts = [part.strip() for part in parts]
    if is_open:
        texts[-1] = parts[-1].lstrip()  # goes on exactly where it stops, white space included
    return texts


def refuse_tools(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> None:
    """Raises `RequestError` if anything has to do with tools."""
    reason = "the file has no chat template, and the built-in one has no tools"
    if tools:
        raise RequestError("tools", reason)
    for index, message in enumerate(messages):
        if message.role is Role.TOOL:
            raise RequestError(f"messages[{index}].role", f"is 'tool', but {reason}")
        if message.tool_calls:
            raise RequestError(f"messages[{index}].tool_calls", f"must be empty: {reason}")
