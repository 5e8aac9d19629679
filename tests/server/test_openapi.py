"""The OpenAPI document: it names every route, and requests made up from it break nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings

from culet.server.openapi import openapi_document
from culet.server.routes import API_ROUTES
from support.live_server import serving, state_for


def script(prompt: str, choice: int) -> str:
    return "Hello there."


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(state_for(script)) as address:
        yield address


def test_every_route_and_field_is_described() -> None:
    document = openapi_document()
    for route in API_ROUTES:
        operation = document["paths"][route.path.replace(":path", "")][route.method.lower()]
        assert operation["summary"].endswith(".")
        if route.body is not None:
            schema = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            name = schema.rpartition("/")[2]
            described = document["components"]["schemas"][name]["properties"]
            assert set(described) == set(route.body.model_fields)


@pytest.mark.slow
@pytest.mark.parametrize("path", [r.path for r in API_ROUTES if r.body is not None])
def test_made_up_requests_break_nothing(url: str, path: str) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    schema = schemathesis.openapi.from_dict(openapi_document())
    operation = schema[path]["POST"]

    @given(case=operation.as_strategy())
    @settings(
        max_examples=60,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    def check(case: Any) -> None:
        answer = httpx.post(f"{url}{path}", json=_plain(case.body), timeout=20)
        assert answer.status_code < 500 or answer.status_code == 501, answer.text
        assert "internal_error" not in answer.text and "internal error" not in answer.text

    check()


def _plain(value: Any) -> Any:
    """Without lone surrogates, which no client could send."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_plain(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value
