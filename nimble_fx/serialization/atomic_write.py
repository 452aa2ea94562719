"""Atomic writes of files."""

import os
import uuid
from pathlib import Path


def write_atomically(directory: Path, name: str, source: str) -> Path:
    """Writes the text as `directory/name`, so that no reader sees a part of it."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    # Containers that share the directory can have processes of one number.
    temporary = directory / f".nimble_fx-{uuid.uuid4().hex}"
    try:
        temporary.write_text(source, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
