"""How Spark finds the source, also where something is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("missing", ["pyarrow", "numpy", "pyspark.sql.streaming.datasource"])
def test_without_its_libraries_the_source_says_what_to_install(missing: str) -> None:
    """And does not take other sources away, as an error of the import would."""
    code = f"""
import sys
import pyspark.sql.datasource
sys.modules[{missing!r}] = None
import pyspark_kraftpy
source = pyspark_kraftpy.DefaultSource
assert source.name() == "kraftpy"
for use in (source({{}}).schema, lambda: source({{}}).writer(None, False)):
    try:
        use()
    except ImportError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == second
    assert missing in first
    assert first.endswith('pip install "kraftpy[spark]"')
