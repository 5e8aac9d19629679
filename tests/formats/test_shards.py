"""Names of split models' files."""

from __future__ import annotations

from pathlib import Path

import pytest

from culet.errors import ModelFileError
from culet.formats.shards import listed, require_files, shard_name, shards_of


def test_any_shard_names_all() -> None:
    names = [shard_name("a-b", n, 3, ".gguf") for n in (1, 2, 3)]
    assert names[1] == "a-b-00002-of-00003.gguf"
    assert all(shards_of(name) == names for name in names)


@pytest.mark.parametrize(
    "name",
    [
        "model.gguf",
        "a-1-of-3.gguf",
        "a-00000-of-00003.gguf",
        "a-00004-of-00003.gguf",
        "a-00000-of-00000.safetensors",
        "-00001-of-00001.gguf",
    ],
)
def test_other_names_stand_alone(name: str) -> None:
    assert shards_of(name) == [name]


def test_what_is_missing_is_listed(tmp_path: Path) -> None:
    (tmp_path / "b").touch()
    require_files(tmp_path, ["b"], tmp_path)
    with pytest.raises(ModelFileError, match=r"x: of 3 weight files 2 are missing: a, c$"):
        require_files(tmp_path, ["a", "b", "c"], Path("x"))
    assert listed(list("abcdefg")) == "a, b, c, d, e and 2 more"
