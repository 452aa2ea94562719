"""Texts become syntax trees in any number of threads."""

import ast
import gc
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from nimble_fx.ir.locked_ast import syntax_tree

TEXT = "\n".join(f"x{i} = f(x{i}, [{i}, (g, {i} + y.z)])" for i in range(50))


@contextmanager
def threads_that_switch_while_they_parse() -> Iterator[None]:
    """Garbage is collected all the time, and whoever collects lets others go on."""

    def lets_others_go_on(*_: object) -> None:
        time.sleep(0)

    threshold = gc.get_threshold()
    gc.callbacks.append(lets_others_go_on)
    gc.set_threshold(50, 1000, 1000)
    try:
        yield
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(lets_others_go_on)


def test_threads_that_parse_do_not_disturb_each_other() -> None:
    expected = ast.dump(ast.parse(TEXT))
    with threads_that_switch_while_they_parse(), ThreadPoolExecutor(4) as threads:
        trees = list(threads.map(lambda _: syntax_tree(TEXT), range(40)))
    assert all(ast.dump(tree) == expected for tree in trees)


def test_what_is_no_python_is_refused() -> None:
    with pytest.raises(SyntaxError):
        syntax_tree("def (")
