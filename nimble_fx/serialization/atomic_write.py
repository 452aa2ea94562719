"""Files that other processes find whole or not at all."""

import os
import threading
from pathlib import Path


def write_atomically(directory: Path, name: str, source: str) -> Path:
    """Writes the text as `directory/name`, whole or not at all."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    temporary = directory / f".{name}.{os.getpid()}.{threading.get_ident()}"
    try:
        temporary.write_text(source, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
