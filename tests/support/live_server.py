"""A server on loopback in a thread of this process, for clients that need a real socket."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from culet.chat.constrain import ConstraintBuilder
from culet.chat.gemma4 import Gemma4Renderer
from culet.server.app import build_app
from culet.server.limits import Limits
from culet.server.model import ModelDetails, ServedModel
from culet.server.run import bind, make_server
from culet.server.state import ServerState
from support.scripted_engine import Script, ScriptedEngine
from support.tiny_tokenizer import tiny_tokenizer


def scripted_model(script: Script, step_seconds: float = 0.0, **options: Any) -> ServedModel:
    tokenizer = tiny_tokenizer()
    fields: dict[str, Any] = {
        "name": "tiny",
        "engine": ScriptedEngine(tokenizer, script, step_seconds),
        "tokenizer": tokenizer,
        "template": Gemma4Renderer(has_empty_thought=False),
        "context_length": 4096,
        "num_ids": tokenizer.vocab_size,
        "constraints": ConstraintBuilder(tokenizer),
        "defaults": {"temperature": 1.0, "top_k": 64, "top_p": 0.95},
        "details": ModelDetails(
            num_parameters=5_000_000, quantization="Q8_0", hidden_size=8, modified_at=1_700_000_000
        ),
    }
    return ServedModel(**{**fields, **options})


@contextmanager
def serving(state: ServerState, send_buffer: int | None = None) -> Iterator[str]:
    """The address of a running server; it is ended with the block.

    Args:
        send_buffer: bytes the system keeps of what a client has yet to take; None for its own
            choice, some megabytes on loopback.
    """
    listener = bind("127.0.0.1", 0)
    if send_buffer is not None:  # connections inherit it
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    ready = threading.Event()
    server = make_server(build_app(state), state.limits, ready.set, state)
    thread = threading.Thread(
        target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True
    )
    thread.start()
    assert ready.wait(10), "the server does not start"
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
        assert not thread.is_alive(), "the server does not end"


def state_for(
    script: Script, step_seconds: float = 0.0, limits: Limits | None = None, **options: Any
) -> ServerState:
    return ServerState(scripted_model(script, step_seconds, **options), limits or Limits())
