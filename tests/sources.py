"""The package's modules, each read and parsed once in a process, for tests about all of them."""

from __future__ import annotations

import ast
import functools
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
    return ast.parse(text_of(module), module.name)
