"""Rules of the house that a linter doesn't know, read off the source.

import-linter holds the layers between packages and wings; here are the rules about single modules,
and that no modules import each other in a circle, be it for types only.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path

import pytest

from tests.sources import MODULES, TESTS, name_of, statements, text_of, tree_of

# Nothing in core may find out what time it is, guess, wait or touch the outside.
NOT_IN_CORE = {
    "asyncio", "datetime", "io", "multiprocessing", "os", "pathlib", "random", "secrets", "select",
    "signal", "socket", "subprocess", "tempfile", "threading", "time", "uuid", "uvloop",
}  # fmt: skip
NOT_ANYWHERE = {"dill", "marshal", "pickle", "shelve"}
# The codec is source that is generated from our own schema tables.
MAY_EXEC = {"kraftpy/protocol/generator.py"}
MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 75
CIRCLES = {
    frozenset(
        f"kraftpy.storage.{name}"
        for name in ("appendable_log", "directory", "flusher", "log", "placement", "recovery")
    ): "a log has the directory that opened it, which it tells what was written and what failed",
}
"""Modules that import each other, and why they may."""


def dotted(module: Path) -> str:
    parts = Path(name_of(module)).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST) -> Iterator[str]:
    """Top-level names of everything that is imported, wherever in the module."""
    for node in statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def imported_modules(tree: ast.AST, modules: Container[str]) -> set[str]:
    """Those of `modules` that are imported, wherever in the module, for types too."""
    found: set[str] = set()
    for node in statements(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in modules}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inside = f"{node.module}.{alias.name}"
                name = inside if inside in modules else node.module
                found |= {name} if name in modules else set()
    return found


def circles(imports: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """The largest sets of modules each of which reaches all others of its set (Tarjan)."""
    found: set[frozenset[str]] = set()
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        path.append(module)
        for other in sorted(imports[module]):
            if other not in order:
                visit(other)
            if other in path:
                lowest[module] = min(lowest[module], lowest[other])
        if lowest[module] == order[module]:
            start = path.index(module)
            members = frozenset(path[start:])
            del path[start:]
            if len(members) > 1 or module in imports[module]:
                found.add(members)

    for module in imports:
        if module not in order:
            visit(module)
    return found


def calls(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


def reads_no_clock(name: str, text: str, tree: ast.Module) -> Iterator[str]:
    if name.startswith("kraftpy/core/"):
        yield from (f"imports {found}" for found in sorted(set(imports(tree)) & NOT_IN_CORE))
        if "open" in calls(tree):
            yield "calls open"


def runs_no_data(name: str, text: str, tree: ast.Module) -> Iterator[str]:
    yield from (f"imports {found}" for found in sorted(set(imports(tree)) & NOT_ANYWHERE))
    if name not in MAY_EXEC:
        yield from (
            f"calls {found}" for found in sorted({"eval", "exec", "compile"} & {*calls(tree)})
        )


def has_few_lines(name: str, text: str) -> Iterator[str]:
    lines = len(text.splitlines())
    # Tables may be as long as the protocol is.
    if Path(name).parent.name != "schemas" and lines > MODULE_LINES_MAX:
        yield f"has {lines} lines"


def is_short(name: str, text: str, tree: ast.Module) -> Iterator[str]:
    yield from has_few_lines(name, text)
    for node in statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                yield f"{node.name} has {length} lines"


def says_what_it_is_for(name: str, text: str, tree: ast.Module) -> Iterator[str]:
    if text.strip() and not ast.get_docstring(tree):
        yield "has no docstring"


Rule = Callable[[str, str, ast.Module], Iterator[str]]
RULES: list[Rule] = [reads_no_clock, runs_no_data, is_short, says_what_it_is_for]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_module(rule: Rule) -> None:
    offences = [
        f"{name_of(module)} {offence}"
        for module in MODULES
        for offence in rule(name_of(module), text_of(module), tree_of(module))
    ]
    assert not offences, "\n".join(offences)


def test_modules_of_tests_are_short_too() -> None:
    offences = [
        f"{name_of(module)} {offence}"
        for module in TESTS
        for offence in has_few_lines(name_of(module), text_of(module))
    ]
    assert not offences, "\n".join(offences)


def test_all_modules_are_looked_at() -> None:
    names = {name_of(module) for module in MODULES}
    assert names >= MAY_EXEC
    assert {"kraftpy/__init__.py", "kraftpy/core/__init__.py", "kraftpy/server/broker.py"} <= names
    assert {"tests/sources.py", "tests/server/conftest.py"} <= {name_of(module) for module in TESTS}


LONG = "def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX


@pytest.mark.parametrize(
    ("rule", "name", "text", "said"),
    [
        (reads_no_clock, "kraftpy/core/x.py", "def f():\n    import time", ["imports time"]),
        (reads_no_clock, "kraftpy/core/x.py", "from os.path import join", ["imports os"]),
        (reads_no_clock, "kraftpy/core/a/x.py", "[open(x) for x in y]", ["calls open"]),
        (reads_no_clock, "kraftpy/server/x.py", "import time", []),
        (runs_no_data, "kraftpy/x.py", "def f():\n    import pickle", ["imports pickle"]),
        (runs_no_data, "kraftpy/x.py", "[eval(x) for x in y]", ["calls eval"]),
        (runs_no_data, "kraftpy/protocol/generator.py", "exec(x)", []),
        (runs_no_data, "kraftpy/protocol/generator.py", "import marshal", ["imports marshal"]),
        (is_short, "kraftpy/x.py", LONG, [f"f has {FUNCTION_LINES_MAX + 1} lines"]),
        (is_short, "kraftpy/x.py", "async " + LONG, [f"f has {FUNCTION_LINES_MAX + 1} lines"]),
        (is_short, "kraftpy/x.py", "x = 1\n" * 601, ["has 601 lines"]),
        (is_short, "kraftpy/protocol/schemas/x.py", "x = 1\n" * 601, []),
        (says_what_it_is_for, "kraftpy/x.py", "import time", ["has no docstring"]),
        (says_what_it_is_for, "kraftpy/x.py", "\n", []),
    ],
)
def test_the_rules_catch_what_they_are_for(
    rule: Rule, name: str, text: str, said: list[str]
) -> None:
    assert list(rule(name, text, ast.parse(text))) == said


def test_modules_import_each_other_in_no_circle() -> None:
    """Whoever opens a circle that is named in CIRCLES takes its name out."""
    names = {dotted(module): module for module in MODULES}
    imports = {name: imported_modules(tree_of(module), names) for name, module in names.items()}
    assert circles(imports) == CIRCLES.keys()


def test_circles_are_found_also_where_types_alone_close_them() -> None:
    texts = {
        "a": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from b import Thing",
        "b": "def f():\n    from p import c",
        "p": "",
        "p.c": "import a",
        "d": "from a import Thing\nfrom p.c import Other",
        "e": "import e",
    }
    imports = {name: imported_modules(ast.parse(text), texts) for name, text in texts.items()}
    assert circles(imports) == {frozenset({"a", "b", "p.c"}), frozenset({"e"})}
    assert not circles(imports | {"b": set(), "e": set()})
