"""The environment of docs/recipes.md: Quix Streams wants an older confluent-kafka than ours."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from tests.apache_kafka import CACHE

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "faststream[kafka]==0.7.8",
    "quixstreams==3.28.1",
    "pytest==9.2.0",
    "pytest-timeout==2.4.0",
)
_TIMEOUT_S = 600


@functools.cache
def make_environment() -> Path:
    """A Python with what recipes need, and what kraftpy stands on; kept between runs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    packages = [*PACKAGES, *project["dependencies"]]
    said = "\n".join([sys.version, *packages])
    home = CACHE / "recipes" / hashlib.sha256(said.encode()).hexdigest()[:16]
    if not (home / "made").exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home.parent) as folder:
            made = Path(folder) / "made"
            _run(sys.executable, "-m", "venv", str(made.with_name("venv")))
            python = str(made.with_name("venv") / "bin" / "python")
            _run(
                python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages
            )
            made.touch()
            with contextlib.suppress(OSError):  # another worker was quicker
                Path(folder).rename(home)
    return home / "venv" / "bin" / "python"


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=_TIMEOUT_S)
