"""docs/recipes.md: each application and its tests, as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.conformance.recipes import ROOT, make_environment

RECIPES = re.findall(
    r"^```python\n# (\w+\.py)\n(.*?)^```$",
    (ROOT / "docs" / "recipes.md").read_text(),
    re.DOTALL | re.MULTILINE,
)
TESTS = [name for name, _ in RECIPES if name.startswith("test_")]


def test_there_are_recipes() -> None:
    assert TESTS == ["test_kitchen.py", "test_faststream_kitchen.py", "test_quix_totals.py"]


@pytest.mark.parametrize("name", TESTS)
def test_a_recipe(name: str, tmp_path: Path) -> None:
    for each, content in RECIPES:
        (tmp_path / each).write_text(content)
    command = [str(make_environment()), "-m", "pytest", "-q", "-p", "kraftpy.testing.plugin"]
    command += ["-p", "pytest_timeout", "-p", "no:cacheprovider", "--timeout=90", name]
    # Whether the folder of this checkout says that it has a plugin depends on how it was installed.
    own = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
