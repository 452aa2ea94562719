"""Python text as a syntax tree, safely from several threads."""

import ast
import threading

_LOCK = threading.Lock()


def syntax_tree(text: str, file: str = "<unknown>") -> ast.Module:
    """The syntax tree of a text, by `ast.parse` under a lock.

    In CPython before 3.12, parsing in two threads at once can end in a SystemError (cpython issue
    106905).

    Raises:
        SyntaxError: the text is not Python.
    """
    with _LOCK:
        return ast.parse(text, file)
