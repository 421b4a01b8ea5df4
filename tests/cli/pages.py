"""Programs on pages of docs/, and what they print."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
ADDRESS = "127.0.0.1:9092"


def programs_of(page: str) -> list[str]:
    """All of a page, in their order."""
    text = (DOCS / page).read_text()
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def printed_by(program: str, bootstrap: str) -> list[str]:
    """The lines of a program that runs as it stands there, but for the address."""
    assert ADDRESS in program
    command = [sys.executable, "-W", "error", "-c", program.replace(ADDRESS, bootstrap)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
