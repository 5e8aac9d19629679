"""`culet serve`: its options, keys and limits; `serving` does the work."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

from culet.cli.options import add_engine_options, add_model_argument, byte_size, positive_int
from culet.errors import UsageError
from culet.server.limits import Access, Limits, require_safe_bind

_KEY_VARIABLE = "CULET_API_KEY"
_MIB = 1024 * 1024
_MAX_PORT = 65535
# Lower case and without a path: it is compared with what browsers send.
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/A-Z\s]+")
_BODIES_AT_ONCE = 8  # of the largest size that is allowed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser, has_default=True)
    _add_server_options(parser.add_argument_group("server"))
    _add_access_options(parser.add_argument_group("access"))
    _add_limits(parser.add_argument_group("limits"))
    add_engine_options(parser, has_template=True)
    _add_batching_options(parser.add_argument_group("many requests at once"))


def _add_server_options(server: argparse._ArgumentGroup) -> None:
    server.add_argument("--host", default="127.0.0.1", help="address (default: %(default)s)")
    server.add_argument(
        "--port", type=port_number, default=11435, help="0: any that is free (default: %(default)s)"
    )
    server.add_argument("--name", metavar="NAME", help="the model's name (default: the file's)")
    server.add_argument(
        "--alias",
        action="append",
        default=[],
        metavar="NAME",
        help="another name for it; may be given several times",
    )
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
    server.add_argument(
        "--log-times", action="store_true", help="begin each line of the log with date and time"
    )


def _add_access_options(access: argparse._ArgumentGroup) -> None:
    access.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help=f"needed by every request; may be given several times, or as {_KEY_VARIABLE}",
    )
    access.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help="a file with one key on each line"
    )
    access.add_argument(
        "--allow-no-key", action="store_true", help="serve other machines without any key"
    )
    access.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name by which clients may call this machine, beside localhost and its addresses; "
        "may be given several times",
    )
    access.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        type=web_origin,
        metavar="ORIGIN",
        help="web pages that may call, such as https://example.com, or * for all; may be given "
        "several times",
    )


def _add_limits(limits: argparse._ArgumentGroup) -> None:
    limits.add_argument(
        "--max-requests",
        type=positive_int,
        default=256,
        metavar="N",
        help="requests running and waiting; more are told to try again (default: %(default)s)",
    )
    limits.add_argument(
        "--max-body-mb",
        type=positive_int,
        default=32,
        metavar="MB",
        help="size of a request, in MiB (default: %(default)s)",
    )
    limits.add_argument(
        "--request-timeout",
        type=positive_int,
        metavar="SECONDS",
        help="for one answer, which fails with 504 after them (default: no limit)",
    )


def _add_batching_options(batching: argparse._ArgumentGroup) -> None:
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


def web_origin(text: str) -> str:
    """An argparse type: an origin as browsers send it, or `*`."""
    if text != "*" and not _ORIGIN.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an origin such as https://example.com or http://localhost:3000"
        )
    return text


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
    # Imported here: --help and a refusal need nothing of the server.
    from culet.cli.serving import serve

    serve(args, limits, access)
    return 0


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
        except OSError as error:
            raise UsageError(f"{args.api_key_file}: can't be read ({error.strerror})") from error
        except ValueError as error:
            raise UsageError(f"{args.api_key_file}: is not UTF-8 text") from error
        keys += [line.strip() for line in lines if line.strip()]
        if not keys:
            raise UsageError(f"{args.api_key_file}: there is no key in it")
    if any(not key.strip() for key in keys):
        raise UsageError("an API key is empty; leave it out to serve without keys")
    return tuple(dict.fromkeys(keys))
