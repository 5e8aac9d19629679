"""JSON Schema as a source of types: what a value written by the model is meant to be.

Knows schemas and plain values; no call syntax. It does not validate: a value that no type allows
is passed on as it was written, and the caller's own validation decides.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any] | bool | None

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_DIGITS = re.compile(r"[+-]?\d+")
_MAX_NUMBER_CHARS = 400  # beyond it a number is text: no type of JSON would hold it
_MAX_REF_HOPS = 16
# Templates print Python's spellings into earlier calls, so models write them too.
_CONSTANTS = {
    "true": True,
    "false": False,
    "null": None,
    "True": True,
    "False": False,
    "None": None,
}
_PYTHON_NAMES: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}


class SchemaView:
    """One place in a schema: the types it allows and the places below it.

    `root` is the whole schema, where local references (`#/$defs/...`) are looked up.
    """

    def __init__(self, schema: Schema, root: Schema = None) -> None:
        self.root = schema if root is None else root
        self.schema: Mapping[str, Any] = self._resolve(schema)

    def _resolve(self, schema: Schema) -> Mapping[str, Any]:
        for _ in range(_MAX_REF_HOPS):
            if not isinstance(schema, Mapping):
                return {}
            ref = schema.get("$ref")
            if not isinstance(ref, str) or not ref.startswith("#"):
                return schema
            schema = _follow(self.root, ref)
        return {}

    def _branches(self) -> list[SchemaView]:
        found = []
        for key in ("anyOf", "oneOf", "allOf"):
            options = self.schema.get(key)
            if isinstance(options, list):
                found += [SchemaView(option, self.root) for option in options]
        return found

    def types(self, depth: int = 8) -> frozenset[str]:
        """Names of the JSON types allowed here; empty where the schema does not say."""
        declared = self.schema.get("type")
        names = {declared} if isinstance(declared, str) else set()
        if isinstance(declared, list):
            names = {n for n in declared if isinstance(n, str)}
        values = self.schema.get("enum")
        if not names and "const" in self.schema:
            values = [self.schema["const"]]
        if not names and isinstance(values, list):
            names = {_PYTHON_NAMES.get(type(v), "string") for v in values}
        if not names and depth:
            for branch in self._branches():
                names |= branch.types(depth - 1)
        if self.schema.get("nullable") is True and names:
            names.add("null")
        return frozenset(n.lower() for n in names)

    def properties(self, depth: int = 8) -> dict[str, Any]:
        """Declared properties of an object, those of `anyOf` and its like included."""
        own = self.schema.get("properties")
        found: dict[str, Any] = {}
        if depth:
            for branch in self._branches():
                found |= branch.properties(depth - 1)
        if isinstance(own, Mapping):
            found |= own
        return found

    def property(self, name: str) -> SchemaView:
        declared = self.properties()
        if name in declared:
            return SchemaView(declared[name], self.root)
        return SchemaView(self.schema.get("additionalProperties"), self.root)

    def item(self, index: int) -> SchemaView:
        prefix = self.schema.get("prefixItems")
        if isinstance(prefix, list) and index < len(prefix):
            return SchemaView(prefix[index], self.root)
        if "items" not in self.schema:
            for branch in self._branches():
                if "items" in branch.schema or "prefixItems" in branch.schema:
                    return branch.item(index)
        return SchemaView(self.schema.get("items"), self.root)

    def wants_text(self) -> bool:
        """True where a string is the only thing (besides null) that may stand here."""
        types = self.types()
        return "string" in types and types <= {"string", "null"}


def _follow(root: Schema, ref: str) -> Schema:
    node: Any = root
    for part in ref.removeprefix("#").split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(node, Mapping) or key not in node:
            return None
        node = node[key]
    return node if isinstance(node, Mapping | bool) else None


def from_bare(text: str, view: SchemaView) -> Any:
    """The value of an unquoted word: a literal's own type, or text where the schema wants text."""
    types = view.types()
    value = _literal(text)
    if value is None:
        return None
    if isinstance(value, str):
        number = _leading_zeros(text)
        if number is not None and types & {"integer", "number"} and "string" not in types:
            return number
        return text
    if view.wants_text():
        return text
    if types and "string" in types and _PYTHON_NAMES[type(value)] not in _with_numbers(types):
        return text
    return _as_integer(value, types)


def from_quoted(text: str, view: SchemaView) -> Any:
    """The value of a quoted string: text, unless the schema allows other types only."""
    types = view.types()
    if not types or "string" in types:
        return text
    value = _literal(text.strip())
    if isinstance(value, str):
        value = _json_container(text)
    if value is None and text.strip() not in _CONSTANTS:
        return text
    value = _as_integer(value, types)
    return value if _PYTHON_NAMES[type(value)] in _with_numbers(types) else text


def _literal(text: str) -> Any:
    """Constants and JSON numbers as values; any other text as it is."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if len(text) > _MAX_NUMBER_CHARS or not _NUMBER.fullmatch(text):
        return text
    if _DIGITS.fullmatch(text):
        return int(text)
    number = float(text)
    return number if math.isfinite(number) else text


def _leading_zeros(text: str) -> int | None:
    plausible = len(text) <= _MAX_NUMBER_CHARS and _DIGITS.fullmatch(text)
    return int(text) if plausible else None


def _json_container(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list | dict) else None


def _with_numbers(types: frozenset[str]) -> frozenset[str]:
    return types | {"integer"} if "number" in types else types


def _as_integer(value: Any, types: frozenset[str]) -> Any:
    """7.0 and 1e9 are integers where only integers are allowed."""
    if isinstance(value, float) and "integer" in types and "number" not in types:
        return int(value) if value.is_integer() else value
    return value
