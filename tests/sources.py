"""The package's modules, each read and parsed once in a process, for tests about all of them."""

from __future__ import annotations

import ast
import functools
import gc
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "kraftpy"
MODULES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((PACKAGE.parent / "tests").rglob("*.py"))


def name_of(module: Path) -> str:
    return str(module.relative_to(PACKAGE.parent))


@functools.cache
def text_of(module: Path) -> str:
    return module.read_text()


@functools.cache
def tree_of(module: Path) -> ast.Module:
    # To look through all that a worker holds, again and again, would take three times as long.
    gc.disable()
    try:
        return ast.parse(text_of(module), module.name)
    finally:
        gc.freeze()
        gc.enable()


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """All statements below a node, wherever they are; a tenth of what `ast.walk` has to look at."""
    for parts in ("body", "handlers", "orelse", "finalbody", "cases"):
        found = getattr(tree, parts, ())
        for each in found if isinstance(found, list) else ():
            if isinstance(each, ast.stmt):
                yield each
            yield from statements(each)
