"""`kraftpy pipeline` where Spark isn't installed, or isn't needed."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from kraftpy.cli.app import app
from kraftpy.cli.common import EXIT_USAGE, Failure
from kraftpy.cli.pipeline import command, options

COMMANDS = {
    "load": ["t", "lake"],
    "stream": ["t", "lake", "--available-now"],
    "rerun": ["t", "lake"],
    "write": ["lake", "t"],
    "mirror": ["t", "--to-bootstrap", "far:1", "--checkpoint", "folder", "--available-now"],
    "compact": ["lake"],
    "runs": ["lake"],
    "audit": ["t"],
    "report": ["flights"],
}


@pytest.mark.parametrize("name", command.commands)
def test_it_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "find_spec", lambda _: None)
    words = ["pipeline", name, *COMMANDS[name]]
    done = CliRunner().invoke(app, words, standalone_mode=False)
    assert isinstance(done.exception, Failure)
    assert done.exception.code == EXIT_USAGE
    assert "pyspark, pyarrow, pandas, numpy aren't installed" in done.exception.message
    assert 'pip install "kraftpy[spark]"' in done.exception.message


def test_help_loads_no_spark() -> None:
    code = (
        "import sys; import kraftpy.cli.app as cli\n"
        "for words in (['--help'], ['pipeline', '--help'], ['pipeline', 'load', '--help']):\n"
        "    cli.app.main(words, standalone_mode=False)\n"
        "sys.exit(str(set(sys.modules) & {'pyspark', 'pyarrow', 'numpy', 'pandas'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "set()"
