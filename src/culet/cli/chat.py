"""`culet chat`: a conversation in the terminal, streamed as markdown."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from rich.console import Console
from rich.text import Text

import culet
from culet.chat.messages import parse_messages
from culet.cli.markdown import MarkdownStream
from culet.cli.options import (
    add_engine_options,
    add_model_argument,
    add_sampling_options,
    expand_user,
    load_options,
    resolve_model,
    sampling_options,
    user_folder,
)
from culet.errors import CuletError, UsageError
from culet.llm.facade import LLM
from culet.llm.results import ChatCompletion, Piece

_HELP = """\
/system [TEXT]   set the system message, or show it; `/system -` takes it away
/think [on|off]  think before answering
/save FILE       write the conversation
/load FILE       go on with a saved one
/retry           answer the last message again
/clear           begin anew
/stats           tokens, speed and memory
/help            this list
/exit            leave (so does Ctrl-D)
Enter sends; Alt+Enter, or a \\ at the end of a line, begins a new line. Ctrl-C stops the answer."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser, has_default=True)
    parser.add_argument("--system", metavar="TEXT", help="a system message")
    parser.add_argument("--think", action="store_true", help="let the model think first")
    add_sampling_options(parser)
    add_engine_options(parser, has_template=True)


def run(args: argparse.Namespace) -> int:
    path = resolve_model(args.model)
    console = Console()
    with culet.load(path, max_seqs=1, **load_options(args)) as llm:
        chat = TerminalChat(llm, console, sampling_options(args), args.system, args.think)
        console.print(Text(path.stem, "bold"), end="")
        console.print(f", context {llm.context_length} tokens. /help helps.", highlight=False)
        chat.run(line_reader())
    return 0


def line_reader() -> Callable[[], str]:
    """A function that gives the next message; it raises EOFError at the end.

    Ctrl-C at a terminal's prompt raises `LineCleared`. Where lines come from elsewhere it ends the
    program, since there is no prompt to go back to.
    """
    if not sys.stdin.isatty():
        return _piped_line
    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _newline(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    session: PromptSession[str] = PromptSession(history=_history(), key_bindings=keys)

    def read() -> str:
        try:
            text = session.prompt("› ")
            while text.endswith("\\"):
                text = text[:-1] + "\n" + session.prompt("… ")
        except KeyboardInterrupt:
            raise LineCleared from None
        return text

    return read


def _piped_line() -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")


def _history() -> FileHistory | InMemoryHistory:
    folder = user_folder("XDG_STATE_HOME", ".local/state")
    if folder is None:
        return InMemoryHistory()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return InMemoryHistory()  # a read-only home is no reason not to talk
    return FileHistory(str(folder / "chat-history"))


class LineCleared(Exception):
    """Ctrl-C at the prompt."""


@dataclass
class TerminalChat:
    """A conversation and its commands. Knows lines and a console; not where lines come from."""

    llm: LLM
    console: Console
    options: dict[str, Any]
    system: str | None = None
    thinks: bool = False
    turns: list[dict[str, Any]] = field(default_factory=list)
    last: ChatCompletion | None = None
    seconds: float = 0.0

    def run(self, read: Callable[[], str]) -> None:
        """Until the end of input."""
        while True:
            try:
                text = read().strip()
            except LineCleared:
                self._say("Ctrl-D or /exit leaves")
                continue
            except EOFError:
                return
            if text.startswith("/"):
                if text in ("/exit", "/quit"):
                    return
                self._command(text)
            elif text:
                self.turns.append({"role": "user", "content": text})
                self._answer()

    def _command(self, text: str) -> None:
        name, _, rest = text.partition(" ")
        commands: dict[str, Callable[[str], None]] = {
            "/system": self._set_system,
            "/think": self._set_thinking,
            "/save": self._save,
            "/load": self._load,
            "/retry": self._retry,
            "/clear": self._clear,
            "/stats": self._show_stats,
            "/help": lambda _: self.console.print(_HELP, markup=False, highlight=False),
        }
        if name not in commands:
            self._say(f"there is no {name}; /help lists what there is")
            return
        try:
            commands[name](rest.strip())
        except CuletError as error:
            self._say(str(error))

    def _say(self, text: str) -> None:
        self.console.print(text, style="dim", markup=False, highlight=False)

    def _set_system(self, text: str) -> None:
        if text:
            self.system = None if text == "-" else text
        self._say(f"system: {self.system or '(none)'}")

    def _set_thinking(self, text: str) -> None:
        if text not in ("", "on", "off"):
            raise UsageError(f"/think takes on or off, not {text!r}")
        self.thinks = not self.thinks if text == "" else text == "on"
        self._say(f"thinking is {'on' if self.thinks else 'off'}")

    def _save(self, text: str) -> None:
        path = _file_name("/save", text)
        content = {"system": self.system, "messages": self.turns}
        try:
            path.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from error
        self._say(f"{len(self.turns)} messages saved in {path}")

    def _load(self, text: str) -> None:
        path = _file_name("/load", text)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from error
        except ValueError as error:
            raise UsageError(f"{path}: not JSON ({error})") from error
        turns = content.get("messages") if isinstance(content, dict) else None
        if not isinstance(turns, list):
            raise UsageError(f"{path}: not a conversation of this program")
        if turns:
            parse_messages(turns)  # says what is wrong, before anything is replaced
        self.system, self.turns = content.get("system"), turns
        self._say(f"{len(turns)} messages loaded from {path}")

    def _retry(self, _: str) -> None:
        while self.turns and self.turns[-1]["role"] == "assistant":
            self.turns.pop()
        if not self.turns:
            raise UsageError("there is nothing to answer yet")
        self._answer()

    def _clear(self, _: str) -> None:
        self.turns = []
        self._say("a new conversation")

    def _show_stats(self, _: str) -> None:
        if self.last is not None:
            usage = self.last.usage
            rate = usage.completion_tokens / self.seconds if self.seconds else 0.0
            self._say(
                f"last answer: {usage.prompt_tokens} + {usage.completion_tokens} tokens, "
                f"{rate:.1f} tokens/s, ended by {self.last.finish_reason}"
            )
            used = usage.prompt_tokens + usage.completion_tokens
            self._say(f"context: {used} of {self.llm.context_length} tokens")
        memory = self.llm.memory()
        self._say(f"memory: {memory.actual_bytes / 2**20:.0f} MiB held by the model")

    def _answer(self) -> None:
        """Answer the last message; what came before Ctrl-C stays in the conversation."""
        messages = [{"role": "system", "content": self.system}] if self.system else []
        began = time.monotonic()
        try:
            pieces = self.llm.chat(
                [*messages, *self.turns],
                stream=True,
                enable_thinking=self.thinks,
                **self.options,
            )
            text = self._show(pieces)
        except CuletError as error:
            self._say(str(error))
            if self.turns[-1]["role"] == "user":
                self.turns.pop()
            return
        self.seconds = time.monotonic() - began
        self.turns.append({"role": "assistant", "content": text})

    def _show(self, pieces: Iterator[Piece]) -> str:
        """Write pieces as they come; the answer's text."""
        answer = ""
        was_thinking = False
        with MarkdownStream(self.console) as stream:
            try:
                for piece in pieces:
                    if piece.reasoning:
                        stream.write_thought(piece.reasoning)
                        was_thinking = True
                    if piece.text:
                        if was_thinking:
                            stream.end_thought()
                            was_thinking = False
                        answer += piece.text
                        stream.write(piece.text)
                    if isinstance(piece.completion, ChatCompletion):
                        self.last = piece.completion
            except KeyboardInterrupt:
                stream.interrupt()
        return answer


def _file_name(command: str, text: str) -> Path:
    try:
        words = shlex.split(text)
    except ValueError:
        words = [text]
    if len(words) != 1:
        raise UsageError(f"{command} takes the name of one file")
    return expand_user(words[0])
