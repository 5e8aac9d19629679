"""What a server accepts: sizes, counts, times, hosts, origins, keys. Plain values, checked once."""

from __future__ import annotations

import hmac
import ipaddress
import re
from dataclasses import dataclass
from hashlib import sha256

from culet.errors import UsageError

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Attributes:
    body_bytes: of one request.
    held_bytes: of all bodies that are being read or turned into requests.
    body_seconds: for a whole body to arrive; also for the head of a request.
    send_seconds: for a client to take what it is sent.
    idle_seconds: a connection may wait for its next request.
    messages: of one conversation.
    tools: of one request.
    choices: `n` of one request.
    embedding_inputs: texts of one request.
    requests: running and waiting at once; more get a 429.
    request_seconds: for one answer; None for no limit.
    drain_seconds: that running answers get when the server ends.
    """

    body_bytes: int = 32 * _MIB
    held_bytes: int = 256 * _MIB
    body_seconds: float = 30.0
    send_seconds: float = 60.0
    idle_seconds: float = 75.0
    messages: int = 4096
    tools: int = 128
    choices: int = 16
    embedding_inputs: int = 2048
    requests: int = 256
    request_seconds: float | None = None
    drain_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class Access:
    """Who may call.

    Attributes:
        keys: any of them opens every route; empty for no keys.
        hosts: names that a Host header may have besides addresses and localhost.
        origins: web pages of other origins that may call; `*` for all.
    """

    keys: tuple[str, ...] = ()
    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()

    def allows_key(self, given: str | None) -> bool:
        """Compare in constant time, with every key, so that time tells nothing."""
        if not self.keys:
            return True
        digest = sha256((given or "").encode("utf-8", "surrogateescape")).digest()
        found = False
        for key in self.keys:
            found |= hmac.compare_digest(sha256(key.encode()).digest(), digest)
        return found and given is not None

    def allows_host(self, host: str) -> bool:
        """Whether a Host header is one of ours.

        A web page can point a name of its own at this machine and so talk to it as its own
        origin; it cannot do that with an address or with localhost. Where keys are needed, a page
        gains nothing.
        """
        if self.keys:
            return True
        name = host_name(host)
        if name in self.hosts or name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def allows_origin(self, origin: str, host: str) -> bool:
        """Whether a page of this origin may call: our own pages, and those that are listed."""
        return self.is_same_origin(origin, host) or bool({origin, "*"} & self.origins)

    @staticmethod
    def is_same_origin(origin: str, host: str) -> bool:
        return origin.partition("://")[2].lower() == host.lower()


def host_name(host: str) -> str:
    """The name in a Host header, without port and brackets, lower case."""
    host = host.strip().lower()
    if host.startswith("["):
        address, _, port = host[1:].partition("]")
        return host if port and not re.fullmatch(r":[0-9]*", port) else address
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def require_safe_bind(address: str, keys: tuple[str, ...], allow_no_key: bool) -> None:
    """Raises `UsageError` for an address that others can reach while no key is asked for."""
    if keys or allow_no_key:
        return
    if address == "localhost":
        return
    try:
        is_local = ipaddress.ip_address(address).is_loopback
    except ValueError:
        is_local = False
    if not is_local:
        raise UsageError(
            f"--host {address} can be reached from other machines: give --api-key, or "
            "--allow-no-key to serve anybody"
        )
