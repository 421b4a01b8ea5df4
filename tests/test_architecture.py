"""Rules of the house that a linter doesn't know, read off the source.

import-linter holds the layers between packages; here are the rules about single modules.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "kraftpy"
MODULES = sorted(PACKAGE.rglob("*.py"))
# Nothing in core may find out what time it is, guess, wait or touch the outside.
NOT_IN_CORE = {
    "asyncio", "datetime", "io", "multiprocessing", "os", "pathlib", "random", "secrets", "select",
    "signal", "socket", "subprocess", "tempfile", "threading", "time", "uuid", "uvloop",
}  # fmt: skip
NOT_ANYWHERE = {"dill", "marshal", "pickle", "shelve"}
# The codec is source that is generated from our own schema tables.
MAY_EXEC = {
    "kraftpy/protocol/generator.py",
    "kraftpy/protocol/codec.py",
    "kraftpy/protocol/source.py",
}
MODULE_LINES_MAX = 620
FUNCTION_LINES_MAX = 75


def name_of(module: Path) -> str:
    return str(module.relative_to(PACKAGE.parent))


def imports(tree: ast.AST) -> Iterator[str]:
    """Top-level names of everything that is imported, wherever in the module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def calls(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


def parse(module: Path) -> ast.Module:
    return ast.parse(module.read_text(), module.name)


@pytest.mark.parametrize("module", [m for m in MODULES if "core" in m.parts], ids=name_of)
def test_core_is_deterministic(module: Path) -> None:
    assert not set(imports(parse(module))) & NOT_IN_CORE
    assert "open" not in set(calls(parse(module)))


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_nothing_runs_data(module: Path) -> None:
    tree = parse(module)
    assert not set(imports(tree)) & NOT_ANYWHERE
    if name_of(module) not in MAY_EXEC:
        assert not {"eval", "exec", "compile"} & set(calls(tree))


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_rooms_stay_liveable(module: Path) -> None:
    text = module.read_text()
    if module.parent.name != "schemas":  # tables may be as long as the protocol is
        assert len(text.splitlines()) <= MODULE_LINES_MAX
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= FUNCTION_LINES_MAX, f"{node.name} has {length} lines"


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_a_module_says_what_it_is_for(module: Path) -> None:
    text = module.read_text()
    assert not text.strip() or ast.get_docstring(ast.parse(text))


def test_the_rules_catch_what_they_are_for() -> None:
    """The helpers see an import inside a function and a call inside an expression."""
    tree = ast.parse("def f():\n    import time\n    return [eval(x) for x in time.y]\n")
    assert set(imports(tree)) == {"time"}
    assert "eval" in set(calls(tree))
