"""The broken builds of `make broken` against the code as it is."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.consistency.broken import BUILDS
from tests.consistency.fitting import fits

TIMEOUT_S = 60


def test_what_builds_replace_is_called_as_before() -> None:
    """In a process of its own: nobody takes back what a build has replaced."""
    command = [sys.executable, "-m", "tests.consistency.fitting"]
    said = subprocess.run(command, stdout=subprocess.PIPE, timeout=TIMEOUT_S, check=True)
    assert json.loads(said.stdout) == {name: [] for name in BUILDS}


def test_a_replacement_that_does_not_fit_is_found() -> None:
    assert fits(lambda one, two=2: 0, lambda one, two=3: 0)
    assert fits(lambda *anything, **named: 0, lambda one, *, two: 0)
    assert not fits(lambda one: 0, lambda one, two=3: 0)
    assert not fits(lambda one, two, three: 0, lambda one, two: 0)
    assert not fits(lambda one: 0, lambda one, *, two: 0)
