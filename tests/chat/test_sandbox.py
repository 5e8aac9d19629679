"""Templates that reach for Python, for memory or for time get an error and nothing else."""

from __future__ import annotations

import resource
import time
from datetime import datetime

import pytest
from jinja2 import TemplateError

from culet.chat import sandbox
from culet.chat.sandbox import Budget, Sandbox, TemplateLimitError, TemplateRefusal
from culet.errors import ModelFileError


def render(source: str, **variables: object) -> str:
    box = Sandbox()
    return box.run(box.compile_template(source, "m"), variables, Budget(1000))


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ range.__init__.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ (messages|attr('__class__')).__base__ }}",
        "{% for x in [1] %}{{ loop.__init__.__globals__ }}{% endfor %}",
        "{{ self.__init__.__globals__ }}",
        "{{ '{0.__class__.__mro__}'.format(1) }}",
        "{{ '{x.__class__}'.format_map({'x': 1}) }}",
        "{{ messages.append(1) }}",
        "{{ messages.clear() }}",
        "{{ _budget._left }}",
        "{{ _budget._charge(-1) }}",
        "{% include 'x' %}",
        "{% import 'x' as x %}",
        "{{ lipsum() }}",
    ],
)
def test_nothing_outside_the_template_can_be_reached(source: str) -> None:
    messages = ["a"]
    try:
        shown = render(source, messages=messages)
    except TemplateError:
        shown = ""
    assert shown == ""  # an unsafe attribute that is only printed counts as undefined
    assert messages == ["a"]


BOMBS = {
    "product": "{{ 'a' * 1000000000 }}",
    "product, other side": "{{ 1000000000 * 'a' }}",
    "list product": "{% set x = [1] * 100000000 %}",
    "power": "{{ 10 ** (10 ** 8) }}",
    "doubling by +": "{% set n = namespace(s='aaaaaaaa') %}"
    "{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "doubling by ~": "{% set n = namespace(s='aaaaaaaa') %}"
    "{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "doubling by join": "{% set n = namespace(s='aaaaaaaa') %}"
    "{% for i in range(60) %}{% set n.s = [n.s, n.s]|join %}{% endfor %}",
    "doubling by the method join": "{% set n = namespace(s='aaaaaaaa') %}"
    "{% for i in range(60) %}{% set n.s = ''.join([n.s, n.s]) %}{% endfor %}",
    "doubling by replace": "{% set n = namespace(s='aaaaaaaa') %}"
    "{% for i in range(60) %}{% set n.s = n.s|replace('a', 'aa') %}{% endfor %}",
    "doubling by the method replace": "{% set n = namespace(s='aaaaaaaa') %}"
    "{% for i in range(60) %}{% set n.s = n.s.replace('a', 'aa') %}{% endfor %}",
    "nested lists": "{% set n = namespace(x=[1]) %}"
    "{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
    "nested dicts": "{% set n = namespace(x=1) %}"
    "{% for i in range(60) %}{% set n.x = {'a': n.x, 'b': n.x} %}{% endfor %}",
    "nested dicts by call": "{% set n = namespace(x=1) %}"
    "{% for i in range(60) %}{% set n.x = dict(a=n.x, b=n.x) %}{% endfor %}",
    "loops in loops": "{% for a in range(99999) %}{% for b in range(99999) %}"
    "{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
    "literal text": "{% for a in range(99999) %}" + "x" * 10_000 + "{% endfor %}",
    "literal text of a macro": "{% macro m() %}" + "x" * 10_000 + "{% endmacro %}"
    "{% for a in range(99999) %}{{ m() }}{% endfor %}",
    "printed text": "{% for a in range(99999) %}{{ 'x' * 10000 }}{% endfor %}",
    "macros that call themselves twice": "{% macro m(d) %}{% if d %}"
    "{% set a = m(d - 1) %}{% set b = m(d - 1) %}{% endif %}{% endmacro %}{{ m(60) }}",
    "endless recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "percent width": "{{ '%1000000000d' % 1 }}",
    "percent star": "{{ '%*d' % (1000000000, 1) }}",
    "format width": "{{ '{:>1000000000}'.format(1) }}",
    "format width from an argument": "{{ '{:>{}}'.format(1, 1000000000) }}",
    "center": "{{ 'a'.center(1000000000) }}",
    "ljust": "{{ 'a'.ljust(1000000000) }}",
    "zfill": "{{ 'a'.zfill(1000000000) }}",
    "expandtabs": "{{ '\t'.expandtabs(1000000000) }}",
    "indent": "{{ 'a\na'|indent(1000000000) }}",
    "json indent": "{{ [1, [2]]|tojson(indent=1000000000) }}",
    "time format": "{{ strftime_now('%1000000000Y') }}",
    "huge range": "{{ range(1000000000)|list }}",
}


@pytest.mark.parametrize("source", BOMBS.values(), ids=BOMBS.keys())
def test_bombs_are_stopped_early(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A quarter of the real budget, so that those who spend it in single steps take seconds.
    monkeypatch.setattr(sandbox, "_BASE_CHARS", 1 << 22)
    peak_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    with pytest.raises((TemplateError, ModelFileError)):
        render(source)
    assert time.process_time() - start < 30
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_before) / 1024
    # 4 Mi characters of budget, 4 bytes each at worst, on both sides of one operation.
    assert grown_mb < 40


def test_time_is_limited_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MAX_SECONDS", 0.05)
    loop = "{% for a in range(99999) %}{% for b in range(50) %}{% endfor %}{% endfor %}"
    with pytest.raises(TemplateLimitError, match="longer than 0.05 s"):
        render(loop)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("{% if %}", 1),
        ("a\nb\n{{ x", 3),
        ("\n{% endfor %}", 2),
        ("{{ 'a'|no_such_filter }}", 1),
        ("\n\n{% for x in y %}", 3),
    ],
)
def test_syntax_errors_give_line_and_reason(source: str, line: int) -> None:
    with pytest.raises(ModelFileError, match=rf"^m: the chat .* in line {line}: \S+"):
        Sandbox().compile_template(source, "m")


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "(" * 5000 + ")" * 5000 + " }}",
        "{% for x in y %}" * 200 + "{% endfor %}" * 200,
        "x" * (sandbox.MAX_TEMPLATE_CHARS + 1),
    ],
    ids=["parentheses", "loops", "size"],
)
def test_templates_that_python_cannot_take(source: str) -> None:
    with pytest.raises(ModelFileError, match="^m: the chat template "):
        Sandbox().compile_template(source, "m")


def test_what_real_templates_use() -> None:
    year = datetime.now().strftime("%Y")
    for source, expected in (
        ("{{ '%s-%03d' % ('a', 7) }}", "a-007"),
        ("{{ '{}:{:>4}'.format('a', 7) }}", "a:   7"),
        ("{{ [1, 'ü', none, true]|tojson }}", '[1, "ü", null, true]'),
        ("{{ {'a': 1}|tojson(indent=1) }}", '{\n "a": 1\n}'),
        ("{{ ['a', 'b']|join(', ') }}", "a, b"),
        ("{{ ', '.join(['a', 'b']) }}", "a, b"),
        ("{{ 'aab'.replace('a', 'c') }}{{ 'aab'|replace('a', 'c', 1) }}", "ccbcab"),
        ("{{ 'x' ~ 1 ~ none }}", "x1None"),
        ("{% for i in [1, 2, 3] %}{{ loop.index }}/{{ loop.length }}{% if not loop.last %},"
         "{% endif %}{% endfor %}", "1/3,2/3,3/3"),
        ("{% for i in [1, 2] %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "2"),
        ("{% for k, v in {'b': 1, 'a': 2}|dictsort %}{{ k }}{{ v }}{% endfor %}", "a2b1"),
        ("{% for k, v in {'b': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "b1"),
        ("{% generation %}a{% endgeneration %}", "a"),
        ("{{ strftime_now('%Y') }}", year),
        ("{{ undefined_name }}{{ x.y is defined }}", "False"),
        ("a\n{% if true %}\nb\n{% endif %}\nc", "a\nb\nc"),
        ("{% macro f(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}{{ f(a=3, b=4) }}", "1234"),
        ("{% set ns = namespace(i=0) %}{% for x in range(3) %}{% set ns.i = ns.i + x %}{% endfor %}"
         "{{ ns.i }}", "3"),
        ("{{ 'a b'.split(' ')[1] }}{{ ' x '|trim }}{{ 'abc'[1:] }}{{ 'a'|upper }}", "bxbcA"),
    ):  # fmt: skip
        assert render(source, x={}) == expected, source


def test_refusals_carry_the_template_s_words() -> None:
    with pytest.raises(TemplateRefusal, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")
