"""Jinja for templates that come with a model file and may be hostile.

jinja2's immutable sandbox keeps a template away from Python. What it does not bound is memory and
time, and a thread that hangs cannot be stopped; so every way to repeat or to grow is charged to a
budget: loop rounds, calls, operators on strings and lists, list literals, printed values.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from types import BuiltinMethodType, MethodType
from typing import Any

from jinja2 import Template, TemplateError, nodes, pass_context
from jinja2.ext import Extension, LoopControlExtension
from jinja2.filters import FILTERS, do_indent, do_join, do_replace
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from culet.errors import ModelFileError

MAX_TEMPLATE_CHARS = 1 << 18  # the largest official one has 17 thousand
MAX_SECONDS = 30.0  # the official template of the 31B is quadratic: 1,000 messages take it 7 s
_BASE_CHARS = 1 << 24  # what a render may produce on the way, beside _CHARS_PER_INPUT per character
_CHARS_PER_INPUT = 32  # a character of a message is copied a few times: trimmed, joined, printed

_STEP_CHARS = 4  # a loop round or call costs as much as this: some 4 million steps at least

_BUDGET_KEY = "_budget"  # in the render's variables; names with _ have no attributes in the sandbox

# Methods of str that can't make much out of little; join and replace are measured first.
_STRING_METHODS = frozenset({
    "capitalize", "casefold", "count", "endswith", "find", "format", "index", "isalnum", "isalpha",
    "isascii", "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper",
    "join", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind",
    "rindex", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip",
    "swapcase", "title", "upper",
})  # fmt: skip
_FILTERS = (
    "abs", "attr", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first",
    "float", "groupby", "int", "items", "last", "length", "lower", "map", "max", "min", "reject",
    "rejectattr", "reverse", "round", "safe", "select", "selectattr", "sort", "striptags", "title",
    "trim", "truncate", "unique", "upper", "urlencode", "wordcount",
)  # fmt: skip

# Widths of a thousand and more, and widths that come from an argument.
_WIDE_PERCENT_FORMAT = re.compile(r"%[^a-zA-Z%]*(\*|\d{4,})")
_WIDE_BRACE_FORMAT = re.compile(r"{[^}]*(\d{4,}|{)")
_TIME_FORMAT = re.compile(r"([^%]|%[a-zA-Z%]|%-[a-zA-Z])*")


class TemplateLimitError(TemplateError):
    """A template has used up its budget."""


class TemplateRefusal(TemplateError):
    """A template called raise_exception: it does not accept these messages."""


class Budget:
    """What one render may still do. All names begin with `_`, out of a template's reach."""

    def __init__(self, num_input_chars: int) -> None:
        self._left = _BASE_CHARS + _CHARS_PER_INPUT * num_input_chars
        self._deadline = time.monotonic() + MAX_SECONDS
        self._steps_to_clock = 0

    def _charge(self, num_chars: int) -> None:
        """Pays for one step that makes `num_chars` characters or list items."""
        self._left -= _STEP_CHARS + max(0, num_chars)
        if self._left < 0:
            raise TemplateLimitError("it makes far more text than it was given")
        self._steps_to_clock -= 1
        if self._steps_to_clock < 0:
            self._steps_to_clock = 256  # a single step is short: its strings are paid for too
            if time.monotonic() > self._deadline:
                raise TemplateLimitError(f"it runs longer than {MAX_SECONDS:g} s")

    def _charge_value(self, value: object) -> None:
        """Pays for the text of a value; structures that hold one list many times are walked."""
        pending: list[object] = [value]
        while pending:
            item = pending.pop()
            if isinstance(item, str):
                self._charge(len(item))
            elif isinstance(item, Mapping):
                self._charge(1)
                pending += [*item.keys(), *item.values()]
            elif isinstance(item, (list, tuple)):
                self._charge(1)
                pending += item
            else:
                self._charge(1)


def _budget_of(context: Context) -> Budget:
    budget = context.parent[_BUDGET_KEY]  # not through names that a template can set
    assert isinstance(budget, Budget)
    return budget


@pass_context
def _print(context: Context, value: object) -> str:
    _budget_of(context)._charge_value(value)
    return str(value)


@pass_context
def _rounds(context: Context, items: Iterable[Any], num_chars: int = 0) -> Iterator[Any]:
    """The items of a loop, each paid for with the literal text of the loop's body."""
    budget = _budget_of(context)
    for item in items:
        budget._charge(num_chars)
        yield item


@pass_context
def _step(context: Context, value: object, num_chars: int) -> None:
    _budget_of(context)._charge(num_chars)


@pass_context
def _measured(context: Context, value: Any) -> Any:
    _budget_of(context)._charge_value(value)
    return value


@pass_context
def _concat(context: Context, first: object, *others: object) -> str:
    return "".join(_print(context, value) for value in (first, *others))


@pass_context
def _list(context: Context, value: Iterable[Any]) -> list[Any]:
    return list(_rounds(context, value))


@pass_context
def _join(context: Context, value: Iterable[Any], d: str = "", attribute: Any = None) -> str:
    items = list(value)
    budget = _budget_of(context)
    budget._charge_value(items)
    budget._charge(len(d) * len(items))
    return str(do_join(context.eval_ctx, items, d, attribute))


@pass_context
def _replace(context: Context, s: str, old: str, new: str, count: int | None = None) -> str:
    s, old, new = str(s), str(old), str(new)
    _budget_of(context)._charge(len(s) + s.count(old) * len(new))
    return str(do_replace(context.eval_ctx, s, old, new, count))


@pass_context
def _indent(
    context: Context, s: str, width: int | str = 4, first: bool = False, blank: bool = False
) -> str:
    num_chars = width if isinstance(width, int) else len(width)
    _budget_of(context)._charge(len(s) + (s.count("\n") + 1) * num_chars)
    return do_indent(s, width, first, blank)


@pass_context
def _tojson(
    context: Context,
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers has it: no HTML escapes."""
    _budget_of(context)._charge_value(value)
    if indent is not None and not 0 <= indent <= 16:
        raise TemplateError(f"tojson with an indent of {indent}, at most 16 is allowed")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: object) -> None:
    raise TemplateRefusal(str(message))


def _strftime_now(time_format: str) -> str:
    if len(time_format) > 100 or not _TIME_FORMAT.fullmatch(time_format):
        raise TemplateError(f"strftime_now with the format {time_format[:100]!r}")
    return datetime.now().strftime(time_format)


class _GenerationTag(Extension):
    """`{% generation %}`, which marks the assistant's text for training; here it does nothing."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Meter(NodeTransformer):
    """Puts meters into a template's tree where jinja2 has no hook."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        num_chars = _literal_chars(node)
        self.generic_visit(node)
        assert isinstance(node.iter, nodes.Expr)  # jinja2 declares it as any node
        node.iter = _filtered(node.iter, "_rounds", nodes.Const(num_chars))
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        price = _filtered(nodes.Const(0), "_step", nodes.Const(_literal_chars(node)))
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(price, lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node.nodes[0], "_concat", *node.nodes[1:])

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, "_measured")

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, "_measured")

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, "_measured") if node.ctx == "load" else node


def _filtered(node: nodes.Expr, name: str, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)


def _literal_chars(node: nodes.Node) -> int:
    return sum(len(data.data) for data in node.find_all(nodes.TemplateData))


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of all chat templates; renders take a `Budget`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            # As in transformers' apply_chat_template: templates are written for these.
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[LoopControlExtension, _GenerationTag],
            finalize=_print,
        )
        self.filters = {name: FILTERS[name] for name in _FILTERS}
        self.filters |= {"string": _print, "list": _list, "join": _join, "replace": _replace}
        self.filters |= {"indent": _indent, "tojson": _tojson}
        self.filters |= {
            "_rounds": _rounds,
            "_concat": _concat,
            "_measured": _measured,
            "_step": _step,
        }
        self.globals = {
            "range": self.globals["range"],
            "dict": dict,
            "namespace": Namespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    def compile_template(self, source: str, origin: str) -> Template:
        """A compiled template; `ModelFileError` with line and reason if it is not one."""
        if len(source) > MAX_TEMPLATE_CHARS:
            raise ModelFileError(
                f"{origin}: the chat template has {len(source)} characters, at most "
                f"{MAX_TEMPLATE_CHARS} are allowed"
            )
        try:
            return self.from_string(source)
        except TemplateError as error:
            line = getattr(error, "lineno", None)
            where = f" in line {line}" if line else ""
            raise ModelFileError(
                f"{origin}: the chat template does not compile{where}: {error.message}"
            ) from error
        except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
            # The Python that jinja2 makes of a template has limits of its own, such as 20 loops
            # inside one another.
            reason = str(error) or type(error).__name__
            raise ModelFileError(
                f"{origin}: the chat template does not compile: {reason}"
            ) from error

    def run(self, template: Template, variables: Mapping[str, Any], budget: Budget) -> str:
        """The text of a template; whatever it raises comes as `TemplateError`."""
        try:
            return template.render({**variables, _BUDGET_KEY: budget})
        except TemplateError:
            raise
        except (RecursionError, MemoryError) as error:
            raise TemplateLimitError("it nests too deeply") from error
        except Exception as error:  # a template can make any operation fail
            raise TemplateError(f"{type(error).__name__}: {error}") from error

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(_Meter().visit(source), *args, **kwargs)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr not in _STRING_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = _budget_of(context)
        if operator == "**":
            if isinstance(left, int) and isinstance(right, int):
                budget._charge(left.bit_length() * right)
        elif operator == "%":
            if isinstance(left, str) and _WIDE_PERCENT_FORMAT.search(left):
                raise TemplateLimitError(f"it asks for a very wide format, {left[:80]!r}")
        else:
            sizes = [len(v) if isinstance(v, (str, list, tuple)) else v for v in (left, right)]
            if not (isinstance(left, (str, list, tuple)) or isinstance(right, (str, list, tuple))):
                budget._charge(0)
            elif operator == "+":
                budget._charge(sum(s for s in sizes if isinstance(s, int)))
            elif all(isinstance(s, int) for s in sizes):
                budget._charge(sizes[0] * sizes[1])
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        budget = _budget_of(context)
        budget._charge(0)
        owner = getattr(obj, "__self__", None)
        name = getattr(obj, "__name__", "")
        if isinstance(owner, str) and isinstance(obj, (MethodType, BuiltinMethodType)):
            if name == "join" and len(args) == 1:
                return _join(context, args[0], owner)
            if name == "replace" and len(args) in (2, 3):
                return _replace(context, owner, *args)
        result = super().call(context, obj, *args, **kwargs)
        if isinstance(result, (str, list, dict)):
            budget._charge_value(result)
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and _WIDE_BRACE_FORMAT.search(value.__self__):
            raise TemplateLimitError(f"it asks for a very wide format, {value.__self__[:80]!r}")
        return wrapped
