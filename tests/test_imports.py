"""Every name that tests import from here is there, also in modules that this machine can't import.

Who has neither Spark nor Java collects no test that needs them, and would not see that a helper
of theirs was renamed.
"""

from __future__ import annotations

import ast
import functools
import symtable
from collections.abc import Iterator
from pathlib import Path

from tests.sources import PACKAGE, TESTS, name_of, statements, text_of, tree_of

ROOT = PACKAGE.parent


@functools.cache
def bound(source: Path) -> set[str]:
    """Names that a module binds."""
    names = symtable.symtable(text_of(source), source.name, "exec").get_symbols()
    return {each.get_name() for each in names if each.is_assigned() or each.is_imported()}


def missing(tree: ast.Module, root: Path) -> Iterator[str]:
    """What a module imports from packages below a folder, and isn't there."""
    for node in statements(tree):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        place = root.joinpath(*node.module.split("."))
        if not (root / place.relative_to(root).parts[0]).is_dir():
            continue  # not ours
        sources = (place.with_suffix(".pyi"), place.with_suffix(".py"), place / "__init__.py")
        source = next((path for path in sources if path.exists()), None)
        names = bound(source) if source is not None else set()
        for alias in node.names:
            inside = place / alias.name
            if alias.name not in names and not (
                inside.is_dir() or inside.with_suffix(".py").exists()
            ):
                yield f"{node.module}.{alias.name}"


def test_what_tests_import_is_there() -> None:
    offences = [
        f"{name_of(module)} imports {name}"
        for module in TESTS
        for name in missing(tree_of(module), ROOT)
    ]
    assert not offences, "\n".join(offences)


def test_what_is_missing_is_found(tmp_path: Path) -> None:
    (tmp_path / "ours" / "inner").mkdir(parents=True)
    (tmp_path / "ours" / "__init__.py").write_text("import json as parser\n")
    (tmp_path / "ours" / "waits.py").write_text("def wait(): ...\nif wait:\n    LIMIT: int = 1\n")
    text = """
from ours import inner, parser, waits, json
from ours.waits import LIMIT, wait, wait_for
from ours.gone import anything
from elsewhere import whatever
"""
    found = list(missing(ast.parse(text), tmp_path))
    assert found == ["ours.json", "ours.waits.wait_for", "ours.gone.anything"]
