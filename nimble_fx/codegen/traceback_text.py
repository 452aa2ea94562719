"""Shows the text of code that was never in a file in tracebacks and pdb."""

import io
import linecache
import threading
from collections import Counter
from types import CodeType

from nimble_fx.torch_internals.dynamo.untraced import when_freed

_shown: Counter[str] = Counter()
"""The number of live code objects of each file in `linecache`."""

_showing = threading.RLock()


def show_text(code: CodeType, source: str) -> None:
    """Adds the text of a code object to `linecache`, for as long as the code lives."""
    file = code.co_filename
    with _showing:
        _shown[file] += 1
        linecache.cache[file] = (len(source), None, io.StringIO(source).readlines(), file)
    when_freed(code, _hide, file)


def _hide(file: str) -> None:
    """Removes a text from `linecache` once no code object of it is left."""
    with _showing:
        _shown[file] -= 1
        if not _shown[file]:
            del _shown[file]
            linecache.cache.pop(file, None)
