"""The terminal chat: its commands, Ctrl-C, and markdown that arrives in pieces."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.markdown import Markdown

from culet.cli.chat import LineCleared, TerminalChat
from culet.cli.markdown import MarkdownStream, split_blocks
from culet.engine.request import Usage
from culet.errors import RequestError
from culet.llm.memory import MemoryReport
from culet.llm.results import ChatCompletion, Piece

MARKDOWN = "# Title\n\nSome **bold** text.\n\n```py\nx = 1\n\ny = 2\n```\n\n- a\n- b\n"


class FakeModel:
    """Answers with what it is given; raises what it is given."""

    context_length = 100

    def __init__(self, *answers: str | BaseException) -> None:
        self.answers = list(answers)
        self.calls: list[dict[str, Any]] = []

    def chat(self, messages: list[dict[str, Any]], **options: Any) -> Iterator[Piece]:
        self.calls.append({"messages": messages, **options})
        answer = self.answers.pop(0)
        if isinstance(answer, RequestError):
            raise answer
        return self._pieces(answer)

    def _pieces(self, answer: str | BaseException) -> Iterator[Piece]:
        if isinstance(answer, BaseException):
            yield Piece(text="half ")
            raise answer
        yield Piece(reasoning="let me\nsee")
        for start in range(0, len(answer), 3):
            yield Piece(text=answer[start : start + 3])
        usage = Usage(5, 7, 0)
        yield Piece(completion=ChatCompletion(answer, "", (), (), "stop", None, usage, 0))

    def memory(self) -> MemoryReport:
        return MemoryReport((), None)


def talk(model: Any, *lines: str | BaseException, terminal: bool = False) -> tuple[Any, str]:
    """Run the lines; the chat and everything that was printed."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=70, color_system=None)
    chat = TerminalChat(model, console, {"temperature": 0})
    chat.run(_reader(lines))
    return chat, out.getvalue()


def _reader(lines: tuple[str | BaseException, ...]) -> Callable[[], str]:
    left = list(lines)

    def read() -> str:
        if not left:
            raise EOFError
        line = left.pop(0)
        if isinstance(line, BaseException):
            raise line
        return line

    return read


def test_answers_and_keeps_the_conversation() -> None:
    model = FakeModel("one", "two")
    chat, out = talk(model, "hi", "more", "/exit", "never")
    assert "one\n" in out and "two\n" in out
    assert [t["content"] for t in chat.turns] == ["hi", "one", "more", "two"]
    assert len(model.calls[1]["messages"]) == 3
    assert model.calls[0]["temperature"] == 0 and model.calls[0]["stream"] is True


def test_ctrl_c_stops_the_answer_and_not_the_program() -> None:
    model = FakeModel(KeyboardInterrupt(), "whole")
    chat, out = talk(model, LineCleared(), "hi", "again")
    assert "Ctrl-D or /exit leaves" in out
    assert [t["content"] for t in chat.turns] == ["hi", "half ", "again", "whole"]


def test_commands(tmp_path: Path) -> None:
    model = FakeModel("one", "other", "last")
    file = tmp_path / "a talk.json"
    chat, out = talk(
        model,
        "/retry",
        "/system Be brief.",
        "/think on",
        "hi",
        f"/save '{file}'",
        "/retry",
        "/clear",
        f"/load '{file}'",
        "more",
        "/stats",
        "/help",
        "/nothing",
        "/think perhaps",
        "/save",
        f"/load {tmp_path}/none",
        "/system -",
    )
    assert "nothing to answer yet" in out and "there is no /nothing" in out
    assert "takes on or off" in out and "name of one file" in out and "No such file" in out
    assert "5 + 7 tokens" in out and "12 of 100 tokens" in out and "Ctrl-C stops" in out
    assert model.calls[0]["messages"][0] == {"role": "system", "content": "Be brief."}
    assert model.calls[0]["enable_thinking"] is True
    assert model.calls[1]["messages"] == model.calls[0]["messages"]
    assert [t["content"] for t in chat.turns] == ["hi", "one", "more", "last"]
    assert chat.system is None


@pytest.mark.parametrize("content", ["[]", "{", '{"messages": [{"role": "robot"}]}'])
def test_a_file_that_is_no_conversation_changes_nothing(tmp_path: Path, content: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(content)
    chat, _ = talk(FakeModel("one"), "hi", f"/load {file}")
    assert len(chat.turns) == 2


def test_a_refused_message_is_taken_back() -> None:
    model = FakeModel(RequestError("prompt", "too long"), "fine")
    chat, out = talk(model, "x" * 10, "hi")
    assert "too long" in out
    assert [t["content"] for t in chat.turns] == ["hi", "fine"]


def test_blocks_are_split_outside_fences_only() -> None:
    assert split_blocks("a\n\nb\n\nc") == ("a\n\nb\n\n", "c")
    assert split_blocks("```\na\n\nb") == ("", "```\na\n\nb")
    assert split_blocks("x\n\n```\na\n\nb") == ("x\n\n", "```\na\n\nb")
    assert split_blocks("no end") == ("", "no end")


def test_markdown_is_the_same_for_every_chunking(monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (1, 2, 7, len(MARKDOWN)):
        console = Console(file=io.StringIO(), width=60, force_terminal=True, color_system=None)
        kept: list[str] = []

        def keep(*items: Any, kept: list[str] = kept, **_: Any) -> None:
            kept.extend(item.markup for item in items if isinstance(item, Markdown))

        # What is printed for good; the block that still grows is drawn without it.
        monkeypatch.setattr(console, "print", keep)
        with MarkdownStream(console) as stream:
            for start in range(0, len(MARKDOWN), size):
                stream.write(MARKDOWN[start : start + size])
        assert "".join(kept) == MARKDOWN
        assert not any(k.count("```") % 2 for k in kept)


def test_a_pipe_gets_plain_text() -> None:
    _, out = talk(FakeModel(MARKDOWN), "hi")
    assert MARKDOWN in out and "let me" not in out


@pytest.mark.slow
def test_picture_of_the_terminal(tmp_path: Path) -> None:
    """Leaves an SVG where CULET_SCREENSHOTS says, for a person to look at."""
    console = Console(record=True, width=80, force_terminal=True, file=io.StringIO())
    chat = TerminalChat(FakeModel(MARKDOWN), console, {}, thinks=True)  # type: ignore[arg-type]
    chat.run(_reader(("hi", "/stats", "/help")))
    folder = Path(os.environ.get("CULET_SCREENSHOTS") or tmp_path)
    console.save_svg(str(folder / "terminal.svg"), title="culet chat")
    assert (folder / "terminal.svg").stat().st_size > 1000
