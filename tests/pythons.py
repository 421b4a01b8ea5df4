"""`make test-all`: the unit tests, and a wheel with the README's examples, on each Python at hand.

    python -m tests.pythons [--only 3.13] [--examples]

A Python is at hand if `python3.13` runs, or pyenv has it; it says which there were. Each gets an
environment in build/pythons with the tests' libraries for `tests/unit`, and another one that has
nothing but the wheel, pytest and confluent-kafka: in that the examples of README.md and
docs/testing.md run, as in the project of somebody who has installed kraftpy. `--examples` leaves
the unit tests out.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests import test_docs

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "pythons"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
WORKERS = 2 * (os.cpu_count() or 1)
_NOT_OURS = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "PYENV_VERSION")


def python_of(version: str) -> Path | None:
    """The interpreter of this version, None if there is none that runs."""
    name = f"python{version}"
    found = [shutil.which(name), _of_pyenv(name)]
    return next((Path(each) for each in found if each is not None and _runs(each, version)), None)


def _of_pyenv(name: str) -> str | None:
    """The newest that pyenv has, also where the shell's version is another one."""
    if shutil.which("pyenv") is None:
        return None
    versions = _output(["pyenv", "whence", name]).split()
    return f"{_output(['pyenv', 'prefix', versions[-1]])}/bin/{name}" if versions else None


def _runs(python: str, version: str) -> bool:
    code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    return _output([python, "-c", code]) == version


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def environment(python: Path, name: str, *packages: str) -> Path:
    """The interpreter of a fresh environment that has these."""
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    _run([python, "-m", "venv", folder])
    own = folder / "bin" / "python"
    quiet = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([own, *quiet, "--upgrade", "pip>=25.1"])  # it knows dependency groups
    _run([own, *quiet, *packages])
    return own


def _run(command: Sequence[object], cwd: Path = ROOT) -> int:
    """Runs it; its exit code, which has to be 0 or pytest's 1."""
    clean = {key: value for key, value in os.environ.items() if key not in _NOT_OURS}
    code = subprocess.run([*map(str, command)], cwd=cwd, env=clean, check=False).returncode
    if code not in (0, 1):
        raise SystemExit(f"{' '.join(map(str, command))} ended with {code}")
    return code


def examples(folder: Path) -> Iterator[str]:
    """Writes the examples that are tests; their files' names."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "pytest.ini").write_text("[pytest]\n")  # a project of its own
    for number, block in enumerate(test_docs.examples()):
        (folder / f"test_example_{number}.py").write_text(block)
        yield f"test_example_{number}.py"


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.pythons")
    parser.add_argument("--only", action="append", choices=VERSIONS, help="of this version alone")
    parser.add_argument("--examples", action="store_true", help="no unit tests")
    options = parser.parse_args()
    at_hand = {version: python_of(version) for version in options.only or VERSIONS}
    _run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", FOLDER, ROOT])
    wheel = max(FOLDER.glob("kraftpy-*.whl"), key=lambda path: path.stat().st_mtime)
    results = []
    for version, python in at_hand.items():
        if python is None:
            results.append(f"Python {version}: not at hand")
            continue
        print(f"Python {version}: {python}", flush=True)
        own = environment(
            python, f"wheel-{version}", f"{wheel}[secure]", "pytest", "confluent-kafka"
        )
        names = [*examples(FOLDER / f"examples-{version}")]
        told = [f"examples on the wheel {_verdict(own, FOLDER / f'examples-{version}', names)}"]
        if not options.examples:
            own = environment(python, f"tests-{version}", "--editable", ".", "--group", "test")
            unit = ["-n", str(WORKERS), "-p", "no:cacheprovider", "tests/unit"]
            told.append(f"unit tests {_verdict(own, ROOT, unit)}")
        results.append(f"Python {version}: {', '.join(told)}")
    print("\n".join(results))
    return any("failed" in line for line in results)


def _verdict(python: Path, folder: Path, arguments: Sequence[str]) -> str:
    code = _run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments], folder)
    return "failed" if code else "passed"


if __name__ == "__main__":
    sys.exit(main())
