"""Our own renderer of Gemma 4's dialogue format, for files that carry no template.

Equal to the official template; gemma4_tools.py says where it loses less. A call and its results
stay in one turn of the model, whose thoughts since the user last spoke are kept beside the calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from culet.chat import gemma4_tools
from culet.chat.gemma4_tools import Part
from culet.chat.messages import Message, Role, ToolSpec, require_open_end, system_text
from culet.chat.prompt import Prompt
from culet.chat.syntax import (
    CHANNEL_CLOSE,
    CHANNEL_OPEN,
    RESPONSE_OPEN,
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
        parts: list[Part] = [("<bos>", True)]
        turns = list(messages)
        begins_with_system = turns[0].role in (Role.SYSTEM, Role.DEVELOPER)
        if enable_thinking or tools or begins_with_system:
            parts.append((f"{TURN_OPEN}system\n", True))
            if enable_thinking:
                parts.append((f"{THINK}\n", True))
            if begins_with_system:
                parts.append((system_text(turns.pop(0)).strip(), False))
            for tool in tools:
                parts += gemma4_tools.declaration(tool)
            parts.append((f"{TURN_CLOSE}\n", True))
        parts += _dialogue(turns, continue_final)
        is_in_turn = bool(turns) and _leaves_turn_open(turns)
        if add_generation_prompt and not continue_final and not is_in_turn:
            parts.append((f"{TURN_OPEN}model\n", True))
            if self.has_empty_thought and not enable_thinking:
                parts.append((f"{CHANNEL_OPEN}{THOUGHT_LABEL}\n{CHANNEL_CLOSE}", True))
        return Prompt.join(parts)


def _dialogue(turns: Sequence[Message], continue_final: bool) -> Iterator[Part]:
    last_user = max((i for i, t in enumerate(turns) if t.role is Role.USER), default=-1)
    previous: Role | None = None
    for index, turn in enumerate(turns):
        if turn.role is Role.TOOL:
            if _calls_before(turns, index) is None:
                raise RequestError(
                    f"messages[{index}].role",
                    "is 'tool', but no call of the assistant is before it",
                )
            continue  # shown with the call that it answers
        is_model = turn.role is Role.ASSISTANT
        if not (is_model and previous is Role.ASSISTANT):  # else the model's turn goes on
            yield f"{TURN_OPEN}{'model' if is_model else turn.role}\n", True
        previous = turn.role
        results = list(_results(turns, index))
        if turn.tool_calls:
            if turn.reasoning and index > last_user:
                yield f"{CHANNEL_OPEN}{THOUGHT_LABEL}\n", True
                yield turn.reasoning, False
                yield f"\n{CHANNEL_CLOSE}", True
            for call in turn.tool_calls:
                yield from gemma4_tools.call(call)
            for result in results:
                yield from gemma4_tools.result(_tool_name(turn, result), result)
        is_open = continue_final and index == len(turns) - 1
        yield from ((text, False) for text in _texts(turn, is_open))
        if turn.tool_calls and not results:
            yield RESPONSE_OPEN, True
        elif not is_open and not (results and not any(turn.parts)):
            yield f"{TURN_CLOSE}\n", True


def _results(turns: Sequence[Message], index: int) -> Iterator[Message]:
    """The tools' messages that follow a turn with calls."""
    if not turns[index].tool_calls:
        return
    for turn in turns[index + 1 :]:
        if turn.role is not Role.TOOL:
            return
        yield turn


def _calls_before(turns: Sequence[Message], index: int) -> Message | None:
    """The turn whose calls a tool's message at `index` answers."""
    before = next((t for t in reversed(turns[:index]) if t.role is not Role.TOOL), None)
    return before if before is not None and before.tool_calls else None


def _leaves_turn_open(turns: Sequence[Message]) -> bool:
    """Whether the model is still at its turn: it has called, and said nothing after the results."""
    index = next((i for i in range(len(turns) - 1, -1, -1) if turns[i].role is not Role.TOOL), 0)
    turn = turns[index]
    has_results = index < len(turns) - 1
    return bool(turn.tool_calls) and not (has_results and any(turn.parts))


def _tool_name(turn: Message, result: Message) -> str:
    """By the id of the call, or as the message says."""
    name = result.name or "unknown"
    for call in turn.tool_calls:
        if call.call_id == result.tool_call_id:
            name = call.name
    return name


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
