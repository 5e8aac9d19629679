"""The ASGI application: routes, bodies, errors, pages."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Any

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from culet.server.errors import ApiError, Dialect, add_note, as_api_error, printable, refused
from culet.server.guard import Guard
from culet.server.openapi import docs_page, openapi_document
from culet.server.routes import API_ROUTES, ApiRoute
from culet.server.state import ServerState, note_body
from culet.server.stream import read_body
from culet.server.wire import Body, ignored_fields, read_json

_prompt_log = logging.getLogger("culet.prompts")
_MAX_HEADER_CHARS = 1000
_LARGE_BODY_BYTES = 64 * 1024  # above this, parsing would hold up the event loop
_PAGE_TYPES = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
# The page loads nothing from elsewhere and runs no script that stands in its markup.
_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def build_app(state: ServerState) -> ASGIApp:
    """The application for one served model."""
    document = openapi_document()
    docs = docs_page(document)

    async def show_docs(request: Request) -> Response:
        return HTMLResponse(docs)

    async def show_document(request: Request) -> Response:
        return JSONResponse(document)

    pages = _page_files()
    routes = [Route(r.path, _endpoint(state, r), methods=[r.method]) for r in API_ROUTES]
    routes += [Route("/docs", show_docs), Route("/openapi.json", show_document)]
    routes.append(Route("/", _front(pages["index.html"]), methods=["GET", "HEAD"]))
    routes += [Route(f"/web/{n}", _page(n, data)) for n, data in pages.items() if n != "index.html"]
    app = Starlette(
        routes=routes,
        exception_handlers={HTTPException: _no_route, Exception: _unexpected},
    )
    open_paths = ["/health", "/", *(f"/web/{name}" for name in pages)]
    return Guard(app, state.access, open_paths)


def _endpoint(state: ServerState, route: ApiRoute) -> Callable[[Request], Awaitable[Response]]:
    """A route as Starlette wants it: reads the body, and turns errors into the family's shape."""
    dialect = Dialect.of_path(route.path)

    async def endpoint(request: Request) -> Response:
        try:
            if route.body is None:
                response = await route.handler(state, request)
            else:
                response = await _answer(state, request, route, route.body)
        except ClientDisconnect:
            response = Response(status_code=499)
        except Exception as error:
            failure = as_api_error(error)
            add_note(request.scope, failure.label)
            response = failure.response(dialect)
        state.responses[(route.path, response.status_code)] += 1
        return response

    return endpoint


async def _answer(
    state: ServerState, request: Request, route: ApiRoute, model: type[Body]
) -> Response:
    held: list[Callable[[], None]] = []
    try:
        raw = await read_body(request, state.limits, lambda size: held.append(state.hold(size)))
        note_body(request, len(raw))
        if state.logs_prompts:
            _prompt_log.info("%s %s", request.url.path, raw.decode("utf-8", "replace"))
        if len(raw) > _LARGE_BODY_BYTES:
            body = await state.in_thread(request, lambda: _parse(raw, model))
        else:
            body = _parse(raw, model)
        response: Response = await route.handler(state, request, body)
    finally:
        for let_go in held:
            let_go()
    ignored = ignored_fields(body, route.ignored)
    if ignored:
        response.headers["x-culet-ignored"] = printable(", ".join(ignored), _MAX_HEADER_CHARS)
    return response


def _parse(raw: bytes, model: type[Body]) -> Body:
    value = read_json(raw)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _invalid(error) from None
    except RecursionError:
        raise refused("the body is nested too deeply", code="invalid_json") from None


def _invalid(error: ValidationError) -> ApiError:
    """The first thing that is wrong, by field."""
    first = error.errors(include_url=False, include_context=False)[0]
    # Names of union branches stand among the field names; they mean nothing to a client.
    places = [p for p in first["loc"] if isinstance(p, int) or str(p).isidentifier()]
    field = ".".join(map(str, places)) or "body"
    shown = repr(first.get("input"))
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    message = f"{field}: {first['msg'][:1].lower()}{first['msg'][1:]}, not {shown}"
    if first["type"] == "missing":
        message = f"{field}: this field is required"
    return refused(message, param=field)


async def _no_route(request: Request, error: Exception) -> Response:
    """No such route, or not by this method, in the family's own shape."""
    assert isinstance(error, HTTPException)
    path, allowed = request.url.path, dict(error.headers or {})
    message = f"{request.method} {path} is not a route of this server"
    if "Allow" in allowed:
        message += f"; {path} takes {allowed['Allow']}"
    elif (meant := _meant(path)) is not None:
        message += f"; {meant} is (look at the base URL)"
    failure = ApiError(error.status_code, message, code="not_found", headers=allowed)
    return failure.response(Dialect.of_path(path))


def _meant(path: str) -> str | None:
    """The route that a client with `/v1` too little or too much in its base URL wants."""
    known = {route.path for route in API_ROUTES}
    return next((p for p in (f"/v1{path}", path.removeprefix("/v1")) if p in known), None)


async def _unexpected(request: Request, error: Exception) -> Response:
    return as_api_error(error).response(Dialect.of_path(request.url.path))


def _page_files() -> dict[str, bytes]:
    """The chat page's files by name; small, so that they are held."""
    folder = resources.files("culet.server") / "web"
    files = [f for f in folder.iterdir() if f.name.rpartition(".")[2] in _PAGE_TYPES]
    return {f.name: f.read_bytes() for f in files}


def _page(name: str, data: bytes) -> Callable[[Request], Awaitable[Response]]:
    media_type = _PAGE_TYPES[name.rpartition(".")[2]]

    async def page(request: Request) -> Response:
        return Response(data, media_type=media_type, headers=_page_headers())

    return page


def _front(index: bytes) -> Callable[[Request], Awaitable[Response]]:
    """The chat page for browsers; for others the line by which clients know Ollama."""

    async def front(request: Request) -> Response:
        if "text/html" in request.headers.get("accept", ""):
            return Response(index, media_type="text/html", headers=_page_headers())
        return PlainTextResponse("Ollama is running")

    return front


def _page_headers() -> dict[str, Any]:
    return {
        "content-security-policy": _PAGE_POLICY,
        "cache-control": "no-cache",
        "referrer-policy": "no-referrer",
        "x-frame-options": "DENY",
        "vary": "Accept",
    }
