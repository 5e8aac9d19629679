"""The model behind three API families and a chat page, until the server is told to end."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import logging
import math
import socket
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import culet
from culet import system
from culet.cli.options import load_options, resolve_model
from culet.cli.output import format_bytes
from culet.llm.describe import Description, describe
from culet.llm.facade import LLM
from culet.server.app import build_app
from culet.server.limits import Access, Limits
from culet.server.model import ModelDetails, ServedModel
from culet.server.run import bind, make_server
from culet.server.state import ServerState


def serve(args: argparse.Namespace, limits: Limits, access: Access) -> None:
    """Serve what the arguments name until the server is told to end."""
    system.raise_file_limit()
    # What costs nothing comes first: a bad file is refused from its headers, then a port that is
    # taken is found out; only then is there work.
    path = resolve_model(args.model)
    description = describe(path)
    with bind(args.host, args.port) as listener:
        serve_on(listener, path, description, args, limits, access)


def serve_on(
    listener: socket.socket,
    path: Path,
    description: Description,
    args: argparse.Namespace,
    limits: Limits,
    access: Access,
) -> None:
    """Load the model and serve it on a bound socket until the server is told to end."""
    with culet.load(
        path,
        max_seqs=args.max_seqs,
        kv_bytes=args.kv_memory,
        prefix_cache=not args.no_prefix_cache,
        **load_options(args),
    ) as llm:
        model = served_model(llm, description, args)
        if args.prepare_grammars:
            model.constraints.prepare()
        state = ServerState(model, limits, access, args.log_prompts)
        address = url_of(args.host, listener.getsockname()[1])
        log = logging.getLogger("culet")
        log.info("computing on %s", llm.backend)
        log.info("%s", _plan(llm))

        def say_ready() -> None:
            log.info(
                "ready: %s at %s (chat page there, API at %s/v1)", model.name, address, address
            )

        server = make_server(build_app(state), limits, say_ready, state)
        asyncio.run(server.serve(sockets=[listener]))
        if state.failed_with is not None:
            raise state.failed_with


def url_of(host: str, port: int) -> str:
    """The address of the server as a URL; IPv6 addresses stand in brackets there."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def served_model(llm: LLM, description: Description, args: argparse.Namespace) -> ServedModel:
    """The loaded model with its names and what clients may ask about it."""
    return ServedModel(
        name=args.name or description.path.stem,
        engine=llm.engine,
        tokenizer=llm.tokenizer,
        template=llm.renderer,
        context_length=llm.context_length,
        num_ids=llm.num_ids,
        defaults=asdict(llm.defaults),
        details=model_details(description),
        aliases=tuple(args.alias),
        thinks_by_default=args.think,
        strict_names=args.strict_model,
        constraints=llm.constraints,
    )


def model_details(description: Description) -> ModelDetails:
    """Facts from the file's headers. The digest names the file, it does not prove its bytes."""
    used = [t for t in description.tensors if t.role != "not used"]
    bytes_of_type: Counter[str] = Counter()
    for tensor in used:
        bytes_of_type[tensor.type_name] += tensor.num_bytes
    status = description.path.stat()
    identity = f"{description.path.name} {description.file_bytes} {status.st_mtime_ns}"
    template = description.metadata.get("tokenizer.chat_template")
    config = description.config
    return ModelDetails(
        architecture=config.architecture,
        num_parameters=sum(math.prod(t.shape) for t in used),
        quantization=bytes_of_type.most_common(1)[0][0].upper(),
        file_bytes=description.file_bytes,
        digest=hashlib.sha256(identity.encode()).hexdigest(),
        modified_at=int(status.st_mtime),
        hidden_size=config.hidden_size,
        num_layers=len(config.layers),
        template=template if isinstance(template, str) else "",
    )


def _plan(llm: LLM) -> str:
    """What the model takes; bytes that are mapped are shared with the system's file cache."""
    groups = llm.memory().groups
    parts = [
        f"{g.name.replace(',', '')} {format_bytes(g.planned_bytes)}"
        for g in groups
        if g.planned_bytes
    ]
    mapped = sum(g.mapped_bytes for g in groups)
    if mapped:
        parts.append(f"mapped {format_bytes(mapped)}")
    return f"memory: {', '.join(parts)}; context: {llm.context_length} tokens"
