"""Python text as a syntax tree, whichever threads ask for one."""

import ast
import threading

_LOCK = threading.Lock()


def syntax_tree(text: str, file: str = "<unknown>") -> ast.Module:
    """What `ast.parse` makes of a text, one at a time.

    In CPython before 3.12 two threads that parse disturb each other, which ends in a SystemError
    (cpython issue 106905).

    Raises:
        SyntaxError: it is not Python.
    """
    with _LOCK:
        return ast.parse(text, file)
