"""Promises of the package as a whole: what importing costs, what it exports, what the stub says."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import culet
from culet import _native
from support import builtin_model

ROOT = Path(__file__).parents[2]


def test_public_names_are_sorted_and_exist() -> None:
    assert list(culet.__all__) == sorted(culet.__all__)
    for name in culet.__all__:
        assert getattr(culet, name) is not None


HEAVY = {"torch", "transformers", "rich", "llguidance", "huggingface_hub", "pydantic"}
HELP = """from culet.cli.main import main
try: main(['serve', '--help'])
except SystemExit: pass
"""


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import culet", HEAVY | {"numpy", "jinja2"}),
        ("from culet.cli.main import main; main(['--version'])", HEAVY | {"numpy", "jinja2"}),
        (HELP, HEAVY | {"numpy", "jinja2", "starlette", "uvicorn"}),
        ("import culet; culet.load", HEAVY),
    ],
)
def test_import_pulls_in_no_heavy_package(statement: str, absent: set[str]) -> None:
    probe = f"{statement}\nimport sys; print(sorted({absent!r} & sys.modules.keys()))"
    out = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert out.stdout.splitlines()[-1] == "[]"


def test_stub_names_what_the_native_module_has() -> None:
    tree = ast.parse((ROOT / "src" / "culet" / "_native.pyi").read_text())
    declared = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)} | {
        n.target.id
        for n in tree.body
        if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
    }
    present = {n for n in dir(_native) if not n.startswith("__")}
    assert declared == present


def test_native_sources_keep_to_the_stable_abi() -> None:
    """Wheels of Python 3.12 and later are built for it; a build for 3.11 takes more.

    CPython's macros that check nothing (PyBytes_AS_STRING, PyList_GET_ITEM) are all outside it.
    """
    unchecked = re.compile(r"\bPy[A-Z]\w*_[A-Z][A-Z_]+\b")
    for path in sorted((ROOT / "csrc").rglob("*")):
        if path.suffix in {".cpp", ".h", ".inc"}:
            assert unchecked.findall(path.read_text()) == [], path


def test_sources_speak_of_no_machine() -> None:
    for folder in ("src", "csrc", "bench", "docs"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".cpp", ".h", ".inc", ".md", ".pyi"}:
                text = path.read_text()
                assert "/work/" not in text and "../shared" not in text, path


def test_the_builtin_model_is_whole_and_small() -> None:
    """All of its files, or in a development version none: a release never ships without."""
    present = [path for path in builtin_model.FILES if path.exists()]
    if not present and "dev" in culet.__version__:
        pytest.skip("this checkout has no built-in model")
    assert present == list(builtin_model.FILES)
    carried = builtin_model.MODEL_PATH.stat().st_size
    assert carried < 12e6
    folder = sum(p.stat().st_size for p in builtin_model.FOLDER.rglob("*") if p.is_file())
    assert folder + carried < 40e6
