"""Files that replace others when they are whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from culet.formats.atomic import replacing


def test_what_was_there_stays_until_the_new_file_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "m.culet"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), replacing(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert path.read_bytes() == b"old"
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_leftovers_of_killed_writers_go_and_files_being_written_stay(tmp_path: Path) -> None:
    path = tmp_path / "m[1].culet"
    left = tmp_path / ".m[1].culet.4000000.part"
    left.write_bytes(b"of a process that was killed")
    other = tmp_path / ".m1.culet.4000000.part"
    other.write_bytes(b"of another file")
    with replacing(path) as file:
        assert not left.exists()
        file.write(b"first")
        Path(file.name).rename(left)  # as if another process wrote it
        with replacing(path) as second:
            second.write(b"second")
        assert left.exists() and path.read_bytes() == b"second"
        left.rename(file.name)
    assert path.read_bytes() == b"first"
    assert sorted(tmp_path.iterdir()) == [other, path]
