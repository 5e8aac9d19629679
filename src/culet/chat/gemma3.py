"""Our own renderer of the dialogue format of Gemma 3 and 3n, for files that carry no template."""

from __future__ import annotations

from collections.abc import Sequence

from culet.chat.messages import Message, Role, ToolSpec, require_open_end, system_text
from culet.chat.prompt import Prompt
from culet.errors import RequestError


class Gemma3Renderer:
    """`<start_of_turn>role`, newline, text, `<end_of_turn>`, newline.

    There is no system role: instructions come before the first user's text. Like the official
    template, it wants user and assistant in turn.
    """

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
        _refuse_tools(messages, tools)
        if enable_thinking:
            raise RequestError("enable_thinking", "this model has no thinking mode")
        prefix = ""
        num_system = int(messages[0].role in (Role.SYSTEM, Role.DEVELOPER))
        if num_system:
            prefix = system_text(messages[0]) + "\n\n"
        if len(messages) == num_system:
            raise RequestError(
                "messages", "must hold a user's message after the system message: this model has "
                "no system role, its text goes before the first user's"
            )  # fmt: skip
        parts: list[tuple[str, bool]] = [("<bos>", True)]
        for index, turn in enumerate(messages[num_system:]):
            expected = Role.ASSISTANT if index % 2 else Role.USER
            if turn.role is not expected:
                raise RequestError(
                    f"messages[{num_system + index}].role",
                    f"is {turn.role.value!r}, but user and assistant must alternate, so it has to "
                    f"be {expected.value!r}",
                )
            is_open = continue_final and num_system + index == len(messages) - 1
            role = "model" if turn.role is Role.ASSISTANT else "user"
            texts = [part.strip() for part in turn.parts]
            if is_open:
                texts[-1] = turn.parts[-1].lstrip()
            parts.append((f"<start_of_turn>{role}\n", True))
            parts.append((prefix if index == 0 else "", False))
            parts += [(text, False) for text in texts]
            if not is_open:
                parts.append(("<end_of_turn>\n", True))
        if add_generation_prompt and not continue_final:
            parts.append(("<start_of_turn>model\n", True))
        return Prompt.join(parts)


def _refuse_tools(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> None:
    """Raises `RequestError` if anything has to do with tools."""
    reason = "the file has no chat template, and the built-in one of Gemma 3 has no tools"
    if tools:
        raise RequestError("tools", reason)
    for index, message in enumerate(messages):
        if message.role is Role.TOOL:
            raise RequestError(f"messages[{index}].role", f"is 'tool', but {reason}")
        if message.tool_calls:
            raise RequestError(f"messages[{index}].tool_calls", f"must be empty: {reason}")
