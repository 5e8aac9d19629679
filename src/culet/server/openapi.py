"""The OpenAPI document, made from the table of routes, and a plain page that shows it."""

from __future__ import annotations

import html
from typing import Any

from pydantic.json_schema import models_json_schema

from culet.server.routes import API_ROUTES, ApiRoute

_API_VERSION = "1"
_REF = "#/components/schemas/{model}"
_ERROR_STATUSES = (
    "400",
    "401",
    "403",
    "404",
    "408",
    "413",
    "415",
    "429",
    "500",
    "501",
    "503",
    "504",
)


def openapi_document() -> dict[str, Any]:
    """The document as a JSON value."""
    bodies = list({route.body for route in API_ROUTES if route.body is not None})
    bodies.sort(key=lambda body: (body.__module__, body.__name__))
    refs, definitions = models_json_schema(
        [(body, "validation") for body in bodies], ref_template=_REF
    )
    paths: dict[str, Any] = {}
    for route in API_ROUTES:
        body = None if route.body is None else refs[(route.body, "validation")]
        path = route.path.replace(":path", "")
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, body)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Culet", "version": _API_VERSION},
        "paths": paths,
        "components": {
            "schemas": definitions.get("$defs", {}),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: ApiRoute, body: Any) -> dict[str, Any]:
    responses: dict[str, Any] = {"200": {"description": "the answer, whole or as a stream"}}
    responses |= {status: {"description": "refused or failed"} for status in _ERROR_STATUSES}
    operation: dict[str, Any] = {"summary": route.summary, "responses": responses}
    if body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": body}},
        }
    if "{name" in route.path:
        operation["parameters"] = [
            {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
        ]
    return operation


def docs_page(document: dict[str, Any]) -> str:
    """All routes and their fields on one page, without scripts or outside assets."""
    schemas = document["components"]["schemas"]
    parts = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts.append(f"<h2><code>{method.upper()} {html.escape(path)}</code></h2>")
            parts.append(f"<p>{html.escape(operation['summary'])}</p>")
            body = operation.get("requestBody")
            if body is not None:
                name = body["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[-1]
                parts.append(_fields(schemas[name]))
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Culet API</title>"
        "<meta name=viewport content='width=device-width'>"
        "<style>body{font:16px/1.5 system-ui;max-width:50rem;margin:2rem auto;padding:0 1rem;"
        "color-scheme:light dark}table{border-collapse:collapse}td{padding:.1rem 1rem .1rem 0;"
        "vertical-align:top}h2{margin-top:2rem;font-size:1.1rem}</style>"
        "<h1>Culet API</h1><p>The same as a document for programs: "
        "<a href=/openapi.json>openapi.json</a>.</p>" + "".join(parts)
    )


def _fields(schema: dict[str, Any]) -> str:
    required = set(schema.get("required", ()))
    rows = [
        f"<tr><td><code>{html.escape(name)}</code></td><td>{html.escape(_type(field))}"
        f"{' (required)' if name in required else ''}</td></tr>"
        for name, field in schema.get("properties", {}).items()
    ]
    return f"<table>{''.join(rows)}</table>"


def _type(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(_type(option) for option in field["anyOf"] if option != {"type": "null"})
    if "$ref" in field:
        return "object"
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}))}"
    return str(field.get("type", "any"))
