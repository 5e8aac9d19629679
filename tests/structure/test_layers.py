"""The direction of imports, read from the sources: who may know whom."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "culet"

# For each part of the package, the parts it may import (itself included). `errors` is open to all.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "builtin": set(),
    "system": set(),
    "quant": {"quant"},
    "formats": {"formats", "quant", "system"},
    "ops": {"ops", "quant", "system"},
    "models": {
        "models",
        "ops.interface",
        "formats.binding",
        "formats.checkpoint",
        "formats.names",
        "quant",
    },
    "chat": {"chat"},
    "engine": {"engine", "models", "ops.interface", "quant", "system"},
    "llm": {
        "chat",
        "engine",
        "formats",
        "llm",
        "models",
        "ops.interface",
        "ops.select",
        "quant",
        "system",
    },
    "evals": {"chat", "engine", "evals", "formats.opening", "llm"},
    "hub": {"formats.shards", "hub"},
    "server": {"chat", "engine", "llm", "server"},
    "cli": {
        "builtin",
        "chat",
        "cli",
        "engine",
        "evals",
        "formats",
        "hub",
        "llm",
        "models",
        "ops.interface",
        "ops.select",
        "quant",
        "server",
        "system",
    },
}

# Packages that only some parts may import.
CONFINED: dict[str, tuple[str, ...]] = {
    "torch": (),
    "transformers": (),
    "huggingface_hub": ("hub",),
    "tokenizers": ("evals.tokens",),
    "jinja2": ("chat.template", "chat.sandbox"),
    "llguidance": ("chat.constrain",),
    "starlette": ("server",),
    "uvicorn": ("server",),
    "pydantic": ("server",),
    "prometheus_client": ("server",),
    "prompt_toolkit": ("cli",),
    "rich": ("cli", "llm"),
    "culet._native": ("ops.cpu", "formats", "quant", "chat.tokenizer"),
    "fcntl": ("system",),
    "resource": ("system",),
    "termios": ("system",),
}


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(p for p in parts if p != "__init__")


def imported_modules(path: Path) -> list[str]:
    """Full names of all modules that a file imports, at any depth of nesting."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            base = node.module or ""
            found += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return found


def sources() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*.py"))


def within(name: str, scope: str) -> bool:
    return name == scope or name.startswith(scope + ".")


def allowed_for(module: str) -> set[str] | None:
    for part, allowed in ALLOWED.items():
        if within(module, part):
            return allowed
    return None  # the package root: __init__, __main__


@pytest.mark.parametrize("path", sources(), ids=lambda p: module_name(p) or "__init__")
def test_imports_follow_the_layers(path: Path) -> None:
    module = module_name(path)
    allowed = allowed_for(module)
    if allowed is None:
        assert module in ("", "__main__"), f"{module} belongs to no layer: add it to ALLOWED"
        return
    for name in imported_modules(path):
        if not within(name, "culet") or name in ("culet", "culet._native"):
            continue
        inner = name.removeprefix("culet.")
        if within(inner, "errors") or within(inner, "_native"):
            continue
        assert any(within(inner, a) or within(a, inner) for a in allowed), f"{module} -> {name}"


@pytest.mark.parametrize("path", sources(), ids=lambda p: module_name(p) or "__init__")
def test_confined_packages_stay_confined(path: Path) -> None:
    module = module_name(path)
    for name in imported_modules(path):
        for package, scopes in CONFINED.items():
            if within(name, package):
                assert any(within(module, s) for s in scopes), f"{module} imports {name}"


def test_no_import_cycles() -> None:
    graph: dict[str, set[str]] = {}
    names = {module_name(p): p for p in sources()}
    for module, path in names.items():
        wanted = {n.removeprefix("culet.") for n in imported_modules(path) if within(n, "culet")}
        graph[module] = {n for n in wanted if n in names and n != module and n != ""}
    done: set[str] = set()
    trail: list[str] = []

    def visit(module: str) -> None:
        if module in done:
            return
        assert module not in trail, "cycle: " + " -> ".join([*trail, module])
        trail.append(module)
        for other in sorted(graph[module]):
            visit(other)
        trail.pop()
        done.add(module)

    for module in sorted(graph):
        visit(module)


def test_package_imports_nothing_of_the_repository_around_it() -> None:
    for path in sources():
        for name in imported_modules(path):
            assert name.split(".")[0] not in {"tests", "bench", "scripts"}, f"{path}: {name}"
