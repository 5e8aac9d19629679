"""What the documents name exists: files, modules, links."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import culet
from culet.cli.main import build_parser

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "culet"
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "bench/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
FOLDERS = {p.name for p in (*ROOT.iterdir(), *PACKAGE.iterdir()) if p.is_dir()}
PARTS = {p.stem for p in PACKAGE.iterdir() if not p.name.startswith("_")}
_FILE = re.compile(r"[\w./*-]+\.(py|pyi|cpp|h|inc|md)|[\w.-]+/[\w./*-]*")


def is_there(name: str) -> bool:
    """Whether a path, perhaps a pattern, names something in the repository.

    Documents leave out src/culet, and where a whole page is about one folder, that folder too.
    """
    roots = (ROOT, PACKAGE, ROOT / "csrc", ROOT / "bench", PACKAGE / "formats")
    return any(next(root.glob(name.rstrip("/")), None) is not None for root in roots)


def paths_in(text: str) -> list[str]:
    """Spelled like files or folders of ours; URLs, routes and other people's files are not."""
    quoted = re.findall(r"`([^`\s]+)`", text)
    found = [name for name in quoted if _FILE.fullmatch(name)]
    return [name for name in found if "/" not in name or name.split("/")[0] in FOLDERS]


def modules_in(text: str) -> list[str]:
    """`part.module`, where `part` is one of the package's."""
    quoted = re.findall(r"`(?:culet\.)?(\w+)\.(\w+)\b(?!\()", text)
    endings = {"py", "md", "json"}
    return [f"{part}/{name}" for part, name in quoted if part in PARTS and name not in endings]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_a_document_names_exists(document: Path) -> None:
    text = document.read_text()
    missing = [name for name in paths_in(text) if not is_there(name)]
    missing += [
        name
        for name in modules_in(text)
        if not ((PACKAGE / f"{name}.py").exists() or (PACKAGE / name).is_dir())
    ]
    for link in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", text):
        if not (document.parent / link).exists():
            missing.append(link)
    assert not missing


def test_every_public_name_is_described() -> None:
    text = (ROOT / "docs" / "python.md").read_text()
    assert [name for name in culet.__all__ if f"| `{name}` |" not in text] == []


def words_of(command: str) -> list[str]:
    """A shell line of a document as arguments of `culet`; empty for another program's."""
    words = shlex.split(command.split(" | ")[-1], comments=True)
    return words[1:] if words[:1] == ["culet"] else []


def test_commands_of_documents_are_understood() -> None:
    """Every indented line that calls `culet` parses; what it would do is not done."""
    lines = [
        line.strip()
        for document in DOCUMENTS
        for line in document.read_text().splitlines()
        if line.startswith("    ") and "culet " in line and "[" not in line
    ]
    commands = [words for line in lines if (words := words_of(line))]
    assert len(commands) > 8
    for words in commands:
        args = build_parser(words[0]).parse_args(words)
        assert args.command == words[0]


def test_paths_are_recognised() -> None:
    text = "`ops/interface.py` `/v1/models` `models/nothing.py` `csrc/` `engine.nothing` `bpe.cpp`"
    assert paths_in(text) == ["ops/interface.py", "models/nothing.py", "csrc/", "bpe.cpp"]
    assert [p for p in paths_in(text) if not is_there(p)] == ["models/nothing.py"]
    assert modules_in(text) == ["engine/nothing"]
