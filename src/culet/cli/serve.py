"""`culet serve`: the model behind three API families and a chat page, until it is told to end."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import logging
import os
import socket
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import culet
from culet.cli.options import (
    add_engine_options,
    add_model_argument,
    byte_size,
    load_options,
    positive_int,
    resolve_model,
)
from culet.cli.output import format_bytes
from culet.errors import UsageError
from culet.llm.describe import Description, describe
from culet.llm.facade import LLM
from culet.server.app import build_app
from culet.server.limits import Access, Limits, require_safe_bind
from culet.server.model import ModelDetails, ServedModel
from culet.server.run import bind, make_server
from culet.server.state import ServerState

_KEY_VARIABLE = "CULET_API_KEY"
_MIB = 1024 * 1024
_MAX_PORT = 65535
_BODIES_AT_ONCE = 8  # of the largest size that is allowed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser, has_default=True)
    server = parser.add_argument_group("server")
    server.add_argument("--host", default="127.0.0.1", help="address (default: %(default)s)")
    server.add_argument(
        "--port", type=port_number, default=11435, help="0: any (default: %(default)s)"
    )
    server.add_argument("--name", metavar="NAME", help="the model's name (default: the file's)")
    server.add_argument("--alias", action="append", default=[], metavar="NAME")
    server.add_argument(
        "--strict-model", action="store_true", help="refuse requests for a model of another name"
    )
    server.add_argument("--think", action="store_true", help="think where a request doesn't say")
    server.add_argument(
        "--prepare-grammars",
        action="store_true",
        help="build the tables of constrained answers before the start, not with the first one",
    )
    server.add_argument(
        "--log-prompts", action="store_true", help="write request bodies to standard error"
    )
    access = parser.add_argument_group("access")
    access.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help=f"needed by every request; may be given several times, or as {_KEY_VARIABLE}",
    )
    access.add_argument("--api-key-file", type=Path, metavar="FILE", help="one key per line")
    access.add_argument(
        "--allow-no-key", action="store_true", help="serve other machines without any key"
    )
    access.add_argument("--allow-host", action="append", default=[], metavar="NAME")
    access.add_argument("--cors-origin", action="append", default=[], metavar="ORIGIN")
    limits = parser.add_argument_group("limits")
    limits.add_argument("--max-requests", type=positive_int, default=256, metavar="N")
    limits.add_argument("--max-body-mb", type=positive_int, default=32, metavar="MB")
    limits.add_argument("--request-timeout", type=positive_int, metavar="SECONDS")
    add_engine_options(parser)
    batching = parser.add_argument_group("many requests at once")
    batching.add_argument(
        "--max-seqs",
        type=positive_int,
        default=16,
        metavar="N",
        help="answers written at once; further requests wait (default: %(default)s)",
    )
    batching.add_argument(
        "--kv-memory",
        type=byte_size,
        metavar="SIZE",
        help="what K and V of all requests may take, such as 800MB or 2GiB (default: a quarter of "
        "the free memory, or more where one request of --ctx tokens needs it)",
    )
    batching.add_argument(
        "--no-prefix-cache",
        action="store_true",
        help="compute every prompt whole, also where it begins like an earlier one",
    )


def port_number(text: str) -> int:
    """An argparse type: a TCP port, or 0 for any that is free."""
    if not text.isascii() or not text.isdigit() or int(text) > _MAX_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to {_MAX_PORT}")
    return int(text)


def run(args: argparse.Namespace) -> int:
    keys = read_keys(args)
    require_safe_bind(args.host, keys, args.allow_no_key)
    limits = Limits(
        body_bytes=args.max_body_mb * _MIB,
        held_bytes=_BODIES_AT_ONCE * args.max_body_mb * _MIB,
        requests=args.max_requests,
        request_seconds=args.request_timeout,
    )
    access = Access(
        keys, frozenset(h.lower() for h in args.allow_host), frozenset(args.cors_origin)
    )
    # What costs nothing comes first: a bad file is refused from its headers, then a port that is
    # taken is found out; only then is there work.
    path = resolve_model(args.model)
    description = describe(path)
    with bind(args.host, args.port) as listener:
        serve_on(listener, path, description, args, limits, access)
    return 0


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
        log.info("%s", _plan(llm))

        def say_ready() -> None:
            log.info(
                "ready: %s at %s (chat page there, API at %s/v1)", model.name, address, address
            )

        server = make_server(build_app(state), limits, say_ready)
        asyncio.run(server.serve(sockets=[listener]))


def url_of(host: str, port: int) -> str:
    """The address of the server as a URL; IPv6 addresses stand in brackets there."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def read_keys(args: argparse.Namespace) -> tuple[str, ...]:
    """Keys of options, environment and file.

    Raises:
        UsageError: the file can't be read, or a key is empty.
    """
    keys = list(args.api_key)
    if _KEY_VARIABLE in os.environ:
        keys.append(os.environ[_KEY_VARIABLE])
    if args.api_key_file is not None:
        try:
            lines = args.api_key_file.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise UsageError(f"{args.api_key_file}: not readable as text ({error})") from error
        keys += [line.strip() for line in lines if line.strip()]
        if not keys:
            raise UsageError(f"{args.api_key_file}: there is no key in it")
    if any(not key.strip() for key in keys):
        raise UsageError("an API key is empty; leave it out to serve without keys")
    return tuple(dict.fromkeys(keys))


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
        num_parameters=sum(_num_values(t.shape) for t in used),
        quantization=bytes_of_type.most_common(1)[0][0].upper(),
        file_bytes=description.file_bytes,
        digest=hashlib.sha256(identity.encode()).hexdigest(),
        modified_at=int(status.st_mtime),
        hidden_size=config.hidden_size,
        num_layers=len(config.layers),
        template=template if isinstance(template, str) else "",
    )


def _num_values(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _plan(llm: LLM) -> str:
    groups = [f"{g.name} {format_bytes(g.planned_bytes)}" for g in llm.memory().groups]
    return "memory: " + ", ".join(groups)
