"""How commands of `kraftpy pipeline` get at secured brokers: their source is told, as an option."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from kraftpy.cli.app import app
from kraftpy.cli.pipeline.options import brokers_option, source_option
from kraftpy.spark.security import SecurityOptions

MARKER = "marker-password-7"


def test_settings_are_options_of_the_source_behind_those_of_the_user(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    @click.command()
    @source_option
    @brokers_option
    def command(**options: Any) -> None:
        seen.update(options)

    file = tmp_path / "client.conf"
    file.write_text(
        "bootstrap.servers=file:1\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f"sasl.username=alice\nsasl.password={MARKER}\n"
    )
    arguments = ["--command-config", str(file), "--option", "kafka.client.id=a"]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 0, done.output
    assert seen["bootstrap"] == "file:1"
    assert seen["options"][-1] == "kafka.client.id=a"
    given = dict(each.split("=", 1) for each in seen["options"])
    user = SecurityOptions.read(given).security().user
    assert user is not None
    assert (user.username, user.password.reveal()) == ("alice", MARKER)


@pytest.mark.parametrize("name", ["load", "stream", "rerun", "mirror", "audit", "report", "write"])
def test_each_command_takes_them(name: str) -> None:
    done = CliRunner().invoke(app, ["pipeline", name, "--help"])
    assert done.exit_code == 0, done.output
    assert "--command-config" in done.output
