"""Grammars (Lark, as `llguidance` reads it) for JSON answers and for calls in Gemma's syntax.

Knows schemas and text; no tokenizer tables, no sampling. A grammar may be narrower than its
schema (keys in the template's order, no undeclared keys, no optional white space in calls), never
wider, unless the caller asks for `is_strict=False`, where keywords that cannot be bound are left
to the parser's typing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from culet.chat.schema import Schema
from culet.chat.syntax import CALL_CLOSE, CALL_OPEN, QUOTE
from culet.errors import RequestError

_MAX_RULES = 2000  # a schema that needs more is refused: its grammar would take seconds to build
_MAX_DEPTH = 64
_MAX_COUNT = 10**9  # of characters or items; grammars count no further
# White space between JSON tokens: one newline with its indentation. Unlimited white space lets a
# model write newlines until the token limit.
_JSON_SPACE = r"\n? {0,12}"
_ANNOTATIONS = frozenset(
    "title description default examples example deprecated readOnly writeOnly format $schema $id "
    "$comment $defs definitions $anchor strict nullable contentEncoding contentMediaType".split()
)
_TYPE_KEYWORDS: dict[str, frozenset[str]] = {
    "string": frozenset({"minLength", "maxLength", "pattern"}),
    "integer": frozenset(
        {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    ),
    "number": frozenset(
        {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    ),
    "boolean": frozenset(),
    "null": frozenset(),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
}
_STRUCTURAL = frozenset({"type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"})
_ANY_TYPE = ("string", "number", "boolean", "null", "array", "object")
# Text of a string: anything but the quote token's own spelling.
_TEXT = '/(?s:.*)/ & ~/(?s:.*)<\\|"\\|>(?s:.*)/'


def json_rule(schema: Schema) -> str:
    """A Lark expression for JSON text that fits `schema`; white space is bounded."""
    whole = {} if schema is None or schema is True else schema
    if not isinstance(whole, Mapping):
        raise RequestError("schema", "false allows no value at all")
    options = {"x-guidance": {"whitespace_pattern": _JSON_SPACE, "lenient": False}}
    return f"%json {json.dumps({**whole, **options})}"


def calls_rules(
    tools: Mapping[str, Schema], allow_several: bool, is_strict: Mapping[str, bool]
) -> list[str]:
    """Lark rules; `calls` is one call, or one or more, of these tools, each bound to its schema.

    Raises `RequestError` naming the tool and the keyword that a strict tool's schema may not use.
    """
    if not tools:
        raise RequestError("tools", "a call is demanded, but no tool is declared")
    rules = []
    for number, (name, schema) in enumerate(tools.items()):
        writer = _CallWriter(f"t{number}", f"tools.{name}", schema, is_strict.get(name, False))
        arguments = writer.arguments()
        opening = _literal(f"call:{name}")
        rules.append(f"call_{number}: {CALL_OPEN} {opening} {arguments} {CALL_CLOSE}")
        rules += writer.rules
    one = " | ".join(f"call_{n}" for n in range(len(tools)))
    rules.append(f"call: {one}")
    rules.append("calls: call+" if allow_several else "calls: call")
    return rules


class _CallWriter:
    """Rules for the arguments of one tool."""

    def __init__(self, prefix: str, field: str, schema: Schema, is_strict: bool) -> None:
        self.prefix = prefix
        self.field = field
        self.root = schema
        self.is_strict = is_strict
        self.rules: list[str] = []
        self._refs: dict[str, str] = {}
        self._any: str | None = None

    def arguments(self) -> str:
        """The name of a rule for the arguments with their braces; always an object."""
        schema = self.root
        if not isinstance(schema, Mapping):
            return self.rule('"{}"')
        schema = self._followed(schema)
        # Without any property a tool takes no arguments, whatever else a schema might let pass.
        if not schema.get("properties") and not schema.get("additionalProperties"):
            return self.rule('"{}"')
        return self.object(schema, 0)

    def rule(self, body: str) -> str:
        if len(self.rules) >= _MAX_RULES:
            raise RequestError(self.field, f"the schema needs more than {_MAX_RULES} rules")
        name = f"{self.prefix}_{len(self.rules)}"
        self.rules.append(f"{name}: {body}")
        return name

    def terminal(self, body: str) -> str:
        name = self.rule(body).upper()
        self.rules[-1] = f"{name}: {body}"
        return name

    def _followed(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        for _ in range(_MAX_DEPTH):
            ref = schema.get("$ref")
            if ref is None:
                return schema
            found = self._lookup(ref)
            if not isinstance(found, Mapping):
                return {}
            schema = found
        raise RequestError(self.field, "the schema refers to itself without end")

    def _lookup(self, ref: Any) -> Schema:
        node: Any = self.root
        for part in str(ref).removeprefix("#").split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(node, Mapping) or key not in node:
                raise RequestError(self.field, f"$ref: {ref!r} leads nowhere")
            node = node[key]
        if not str(ref).startswith("#") or not isinstance(node, Mapping | bool):
            raise RequestError(self.field, f"$ref: {ref!r} is not a place in this schema")
        return node

    def value(self, schema: Schema, depth: int) -> str:
        """The name of a rule for one value."""
        if depth > _MAX_DEPTH:
            raise RequestError(self.field, f"the schema is nested more than {_MAX_DEPTH} deep")
        if schema is False:
            raise RequestError(self.field, "the schema `false` allows no value")
        if not isinstance(schema, Mapping) or not schema:
            return self.any_value()
        ref = schema.get("$ref")
        if ref is not None:
            return self._ref(str(ref), depth)
        if "enum" in schema or "const" in schema:
            return self._choice(schema)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self.rule(
                    " | ".join(self.value(s, depth + 1) for s in _schemas(schema[key]))
                )
        if "allOf" in schema:
            parts = _schemas(schema["allOf"])
            if len(parts) == 1:
                return self.value(parts[0], depth + 1)
            self._unsupported("allOf")
            return self.any_value()
        declared = schema.get("type")
        types = [declared] if isinstance(declared, str) else declared
        if not isinstance(types, list):
            types = ["object"] if "properties" in schema else list(_ANY_TYPE)
        names = [self.typed(str(t).lower(), schema, depth) for t in types]
        if schema.get("nullable") is True:
            names.append(self.rule('"null"'))
        self._check_keywords(schema, types)
        return names[0] if len(names) == 1 else self.rule(" | ".join(names))

    def _ref(self, ref: str, depth: int) -> str:
        if ref not in self._refs:
            self._followed({"$ref": ref})  # refuses a circle of references
            name = self.rule("")
            self._refs[ref] = name
            at = len(self.rules) - 1
            self.rules[at] = f"{name}: {self.value(self._lookup(ref), depth + 1)}"
        return self._refs[ref]

    def _choice(self, schema: Mapping[str, Any]) -> str:
        values = schema.get("enum", [schema.get("const")])
        if not isinstance(values, list) or not values:
            raise RequestError(self.field, "enum: it is not a list of one or more values")
        return self.rule(" | ".join(written(v) for v in values))

    def typed(self, kind: str, schema: Mapping[str, Any], depth: int) -> str:
        match kind:
            case "string":
                return self.string(schema)
            case "integer" | "number":
                bounds = {k: v for k, v in schema.items() if k in _TYPE_KEYWORDS[kind]}
                return self.rule(f"%json {json.dumps({'type': kind, **bounds})}")
            case "boolean":
                return self.rule('"true" | "false"')
            case "null":
                return self.rule('"null"')
            case "array":
                return self.array(schema, depth)
            case "object":
                return self.object(schema, depth)
        raise RequestError(self.field, f"type: {kind!r} is not a type of JSON Schema")

    def string(self, schema: Mapping[str, Any]) -> str:
        low, high = self._count(schema, "minLength") or 0, self._count(schema, "maxLength")
        pattern = schema.get("pattern")
        parts = [_TEXT]
        if low or high is not None:
            parts.append(f"/(?s:.{{{low},{'' if high is None else high}}})/")
        if isinstance(pattern, str):
            parts.append(f"/{_anchored(pattern)}/")
        return self.rule(f"{QUOTE} {self.terminal(' & '.join(parts))} {QUOTE}")

    def _count(self, schema: Mapping[str, Any], keyword: str) -> int | None:
        """A keyword that counts characters or items; None where it is not given."""
        value = schema.get(keyword)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise RequestError(self.field, f"{keyword}: {value!r} is not a number")
        if not 0 <= value <= _MAX_COUNT or value != int(value):
            raise RequestError(
                self.field, f"{keyword}: {value!r} is not a whole number up to {_MAX_COUNT}"
            )
        return int(value)

    def array(self, schema: Mapping[str, Any], depth: int) -> str:
        prefix = _schemas(schema.get("prefixItems", []))
        low, high = self._count(schema, "minItems") or 0, self._count(schema, "maxItems")
        if prefix:
            names = [self.value(s, depth + 1) for s in prefix]
            return self.rule('"[" ' + ' "," '.join(names) + ' "]"')
        if high == 0:
            return self.rule('"[]"')
        item = self.value(schema.get("items"), depth + 1)
        rest = f"{max(low - 1, 0)},{'' if high is None else high - 1}"
        some = f'"[" {item} ("," {item}){{{rest}}} "]"'
        return self.rule(some if low else f'"[]" | {some}')

    def object(self, schema: Mapping[str, Any], depth: int) -> str:
        properties = schema.get("properties")
        required = {str(r) for r in _schemas(schema.get("required"))}
        if not isinstance(properties, Mapping) or not properties:
            extra = schema.get("additionalProperties", True)
            if extra is False:
                return self.rule('"{}"')
            return self._free_object(self.value(extra, depth + 1))
        # The order in which the chat template writes keys, so the one that the model knows.
        names = sorted(properties, key=lambda n: (str(n).lower(), str(n)))
        missing = required - set(names)
        if missing:
            raise RequestError(self.field, f"required: {min(missing)!r} is not among properties")
        self._check_keywords(schema, ["object"])
        return self._members(names, properties, required, depth)

    def _members(
        self, names: Sequence[str], properties: Mapping[str, Any], required: set[str], depth: int
    ) -> str:
        """A chain of rules from the last key to the first; each says what may still follow.

        `after` is the rest once a member is written, `first` the rest while none is.
        """
        after, first = self.rule('"}"'), self.rule('"}"')
        for name in reversed(names):
            value = self.value(properties[name], depth + 1)
            member = f"{_literal(_key(name) + ':')} {value}"
            if name in required:
                first_body, after_body = f"{member} {after}", f'"," {member} {after}'
            else:
                first_body = f"{member} {after} | {first}"
                after_body = f'"," {member} {after} | {after}'
            first, after = self.rule(first_body), self.rule(after_body)
        return self.rule(f'"{{" {first}')

    def _free_object(self, value: str) -> str:
        key = self.terminal("/[A-Za-z_][A-Za-z0-9_.-]{0,63}/")
        member = f'{key} ":" {value}'
        return self.rule(f'"{{}}" | "{{" {member} ("," {member})* "}}"')

    def any_value(self) -> str:
        if self._any is None:
            self._any = name = self.rule("")
            at = len(self.rules) - 1
            parts = [
                self.string({}),
                self.typed("number", {}, 0),
                self.typed("boolean", {}, 0),
                self.typed("null", {}, 0),
                self.rule(f'"[]" | "[" {name} ("," {name})* "]"'),
                self._free_object(name),
            ]
            self.rules[at] = f"{name}: " + " | ".join(parts)
        return self._any

    def _check_keywords(self, schema: Mapping[str, Any], types: Sequence[Any]) -> None:
        known = _ANNOTATIONS | _STRUCTURAL
        for kind in types:
            known |= _TYPE_KEYWORDS.get(str(kind).lower(), frozenset())
        for keyword in schema:
            # A keyword of another type says nothing about this one.
            foreign = any(keyword in words for words in _TYPE_KEYWORDS.values())
            if keyword not in known and not foreign and not keyword.startswith("x-"):
                self._unsupported(keyword)

    def _unsupported(self, keyword: str) -> None:
        if self.is_strict:
            raise RequestError(self.field, f"the schema keyword {keyword!r} can't be enforced")


def _schemas(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else []


def written(value: Any) -> str:
    """A constant in call syntax, as a Lark expression."""
    parts: list[str] = []

    def put(item: Any) -> None:
        if isinstance(item, str):
            parts.extend((QUOTE, _literal(item), QUOTE))
        elif isinstance(item, Mapping):
            parts.append('"{"')
            for number, key in enumerate(sorted(item)):
                parts.append(_literal(("," if number else "") + _key(str(key)) + ":"))
                put(item[key])
            parts.append('"}"')
        elif isinstance(item, list):
            parts.append('"["')
            for number, element in enumerate(item):
                if number:
                    parts.append('","')
                put(element)
            parts.append('"]"')
        else:
            parts.append(_literal(json.dumps(item)))

    put(value)
    return " ".join(p for p in parts if p != '""') or '""'


def _key(name: str) -> str:
    """A key as the template writes it; one that would not read back is put in plain quotes."""
    return name if re.fullmatch(r"[^\s:,{}\[\]\"'`<|]+", name) else json.dumps(name)


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _anchored(pattern: str) -> str:
    """A schema pattern, which matches anywhere, as a regex of the whole string."""
    start = "" if pattern.startswith("^") else "(?s:.*)"
    end = "" if pattern.endswith("$") and not pattern.endswith("\\$") else "(?s:.*)"
    body = pattern.removeprefix("^")
    body = body[:-1] if end == "" else body
    return f"{start}(?:{body}){end}".replace("/", "\\/")
