"""Libraries of an extra, and those that few need, are loaded only for those who ask for them."""

from __future__ import annotations

import ast
import subprocess
import sys

from tests.sources import MODULES, PACKAGE, statements, text_of, tree_of

HEAVY = ("pyspark", "pyarrow", "numpy", "pandas")
SECURE = ("cryptography", "jwt")
RARE = ("re2",)  # expressions that groups subscribe to
LIGHT = (
    "kraftpy",
    "kraftpy.cli.server",
    "kraftpy.client.consumer",
    "kraftpy.quorum.raft",
    "kraftpy.server.broker",
    "kraftpy.server.node.processes",
    "kraftpy.spark",
    "kraftpy.testing.plugin",
)


def test_the_broker_and_the_package_load_no_extra() -> None:
    extras = HEAVY + SECURE + RARE
    code = f"import sys, {', '.join(LIGHT)}; print(*sorted(set(sys.modules) & set({extras!r})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_what_is_forked_beside_a_broker_has_nothing_of_the_broker() -> None:
    """It would have it in memory, and the broker imports it while they start."""
    unwanted = ("kraftpy.server.broker", "kraftpy.server.handlers.table", "http.client", "difflib")
    code = (
        "import sys, kraftpy.server.node.processes as node;"
        f"print(*(name for name in {unwanted!r} if name in sys.modules));"
        "node._import_broker();"
        "print('kraftpy.server.broker' in sys.modules, 'http.client' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["", "True False"]


def test_heavy_modules_stay_in_their_rooms() -> None:
    """Not even lazily: whoever needs them is told to install the extra by one module."""
    rooms = {"spark", "pipeline"}
    for module in MODULES:
        if module.relative_to(PACKAGE).parts[0] in rooms:
            continue
        if not any(name in text_of(module) for name in HEAVY):
            continue
        for node in statements(tree_of(module)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & set(HEAVY), module
