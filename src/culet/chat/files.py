"""Small files of a model folder: JSON and text, with errors that name the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from culet.errors import ModelFileError

MAX_FILE_BYTES = 1 << 28  # tokenizer.json of Gemma 4 has 32 MB


def read_text(path: Path) -> str:
    """The text of a UTF-8 file; `ModelFileError` if it can't be read or is too large."""
    try:
        num_bytes = path.stat().st_size
        if num_bytes > MAX_FILE_BYTES:
            raise ModelFileError(
                f"{path}: has {num_bytes} bytes, at most {MAX_FILE_BYTES} are read"
            )
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ModelFileError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path}: not readable as text ({error})") from error


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; `ModelFileError` if there is none."""
    text = read_text(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(content, dict):
        raise ModelFileError(f"{path}: holds {type(content).__name__}, not an object")
    return content
