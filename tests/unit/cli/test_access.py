"""-b, --command-config and -X: what a command gets of them, and what is refused in which words."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from kraftpy.cli import app
from kraftpy.cli.access import Brokers, brokers_option
from kraftpy.cli.common import EXIT_USAGE, Failure
from kraftpy.client.security import NO_SECURITY
from tests.certificates import Authority

MARKER = "hunter2-marker"


@click.command()
@brokers_option
def shows(brokers: Brokers) -> None:
    user = brokers.security.user
    click.echo(f"{brokers.bootstrap} {brokers.security.protocol}")
    if user is not None:
        password = {MARKER: "the marker", f"a\\b {MARKER}": "as it stands"}
        click.echo(f"{user.mechanism} {user.username} {password[user.password.reveal()]}")


def run(*args: str, **environment: str) -> Result:
    result = CliRunner().invoke(shows, args, env=environment)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert MARKER not in result.output
    return result


def refused(*args: str, **environment: str) -> str:
    result = run(*args, **environment)
    assert result.exit_code == 2, result.output
    return " ".join(result.output.split())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "client.conf"


def test_plain_text_without_settings() -> None:
    assert run().output == "127.0.0.1:9092 PLAINTEXT\n"
    assert run("-b", "a:1").output == "a:1 PLAINTEXT\n"


JAVAS = f"""
# As Kafka's documentation has it.
bootstrap.servers=file:1
acks=all
security.protocol = SASL_PLAINTEXT
sasl.mechanism: SCRAM-SHA-256
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\
    username="alice" \\
    password="a\\\\\\\\b {MARKER}";
"""
LIBRDKAFKAS = f"""
# As kcat's documentation has it.
bootstrap.servers=file:1
acks=all
security.protocol=sasl_plaintext
sasl.mechanism=SCRAM-SHA-256
sasl.username=alice
sasl.password=a\\b {MARKER}
"""


@pytest.mark.parametrize("text", [JAVAS, LIBRDKAFKAS])
def test_a_file_of_either_family(file: Path, text: str) -> None:
    file.write_text(text)
    said = "SASL_PLAINTEXT\nSCRAM-SHA-256 alice as it stands\n"
    assert run("--command-config", str(file)).output == f"file:1 {said}"
    assert run(KRAFTPY_COMMAND_CONFIG=str(file)).output == f"file:1 {said}"
    # Whoever says where brokers are is listened to, before the file.
    assert run("--command-config", str(file), "-b", "a:1").output == f"a:1 {said}"
    assert run("--command-config", str(file), KRAFTPY_BOOTSTRAP="a:1").output == f"a:1 {said}"


def test_a_file_of_an_editor_of_windows_loses_no_line(file: Path) -> None:
    file.write_text("bootstrap.servers=file:1\r\n", encoding="utf-8-sig")
    assert run("--command-config", str(file)).output == "file:1 PLAINTEXT\n"
    file.write_text(LIBRDKAFKAS.lstrip("\n").partition("\n")[2], encoding="utf-8-sig")
    assert run("--command-config", str(file)).output.startswith("file:1 SASL_PLAINTEXT\n")


def test_single_settings_go_before_the_file(file: Path, tmp_path: Path) -> None:
    file.write_text(LIBRDKAFKAS)
    authority = Authority().write(tmp_path / "ca.pem")
    given = ["-X", "security.protocol=SASL_SSL", "-X", f"ssl.ca.location={authority}"]
    given += ["-X", "sasl.username=bob", "-X", "sasl.mechanism=PLAIN"]
    said = run("--command-config", str(file), *given).output
    assert said == "file:1 SASL_SSL\nPLAIN bob as it stands\n"


def test_a_password_from_the_environment(tmp_path: Path) -> None:
    given = ["-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.mechanism=PLAIN"]
    given += ["-X", "sasl.username=alice"]
    said = run(*given, KRAFTPY_SASL_PASSWORD=MARKER).output
    assert said == "127.0.0.1:9092 SASL_PLAINTEXT\nPLAIN alice the marker\n"
    assert "sasl.password is missing" in refused(*given)
    # It disturbs nobody who has no use for it.
    assert run(KRAFTPY_SASL_PASSWORD=MARKER).output == "127.0.0.1:9092 PLAINTEXT\n"
    own = Authority().issue("CN=alice").write_pem(tmp_path / "alice.pem", MARKER)
    given = ["-X", "security.protocol=SSL", "-X", f"ssl.keystore.location={own}"]
    given += ["-X", "ssl.keystore.type=PEM"]
    assert run(*given, KRAFTPY_SSL_KEY_PASSWORD=MARKER).output == "127.0.0.1:9092 SSL\n"
    assert "is ssl.key.password right?" in refused(*given)


@pytest.mark.parametrize(
    ("key", "also"),
    [
        ("sasl.password", "or set KRAFTPY_SASL_PASSWORD in the environment"),
        ("sasl.jaas.config", "give --command-config FILE"),
        ("ssl.key.password", "or set KRAFTPY_SSL_KEY_PASSWORD in the environment"),
        ("ssl.key.pem", "give --command-config FILE"),
    ],
)
def test_trap_23_passwords_on_the_command_line_are_refused(key: str, also: str) -> None:
    said = refused("-X", "security.protocol=SASL_SSL", "-X", f"{key}={MARKER}")
    assert f"{key} on the command line is shown to whoever lists processes" in said
    assert also in said


def test_trap_23_what_is_no_setting_is_not_repeated(file: Path) -> None:
    assert "number 2 isn't KEY=VALUE" in refused("-X", "ssl.protocol=TLS", "-X", MARKER)
    assert "did you mean sasl.password?" in refused("-X", f"sasl.pasword={MARKER}")
    assert "acks is no setting of security" in refused("-X", "acks=all")
    file.write_text(f"= {MARKER}\n")
    assert "line 1 isn't key=value" in refused("--command-config", str(file))
    file.write_text(f"sasl.pasword={MARKER}\n")
    assert "did you mean sasl.password?" in refused("--command-config", str(file))


def test_files_that_cannot_be_read(file: Path) -> None:
    assert "No such file" in refused("--command-config", str(file))
    file.write_bytes(b"\xff\xfe")
    assert "isn't UTF-8" in refused("--command-config", str(file))
    file.write_text("#" * (1 << 20) + "\n")
    assert "more than 1048576 bytes" in refused("--command-config", str(file))


def test_what_is_wrong_with_certificates_is_said_before_a_broker_is_met() -> None:
    given = ["-X", "security.protocol=SSL", "-X", "ssl.ca.location=/nowhere/ca.pem"]
    assert "/nowhere/ca.pem: No such file" in refused(*given)


# Their clients are Spark's, and those of others.
_OTHERWISE = ("kraftpy pipeline", "kraftpy consistency")


def commands(group: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(group, click.Group):
        yield name, group
        return
    context = click.Context(group)
    for each in group.list_commands(context):
        command = group.get_command(context, each)
        assert command is not None
        yield from commands(command, f"{name} {each}")


def test_every_command_that_connects_takes_them() -> None:
    connecting = []
    for name, command in commands(app.app, "kraftpy"):
        options = set(itertools.chain.from_iterable(each.opts for each in command.params))
        if "--bootstrap" in options and not name.startswith(_OTHERWISE):
            connecting.append(name)
            assert {"--command-config", "-X"} <= options, name
    assert len(connecting) > 30
    assert "kraftpy probe" in connecting


def test_a_password_in_the_environment_that_is_not_utf_8_is_named() -> None:
    given = ["-X", "security.protocol=SASL_SSL", "-X", "sasl.username=a", "-X"]
    given.append("sasl.mechanism=PLAIN")
    environment = {"KRAFTPY_SASL_PASSWORD": os.fsdecode(b"\xff")}
    done = CliRunner().invoke(shows, given, env=environment, standalone_mode=False)
    assert isinstance(done.exception, Failure)
    assert done.exception.code == EXIT_USAGE
    assert "KRAFTPY_SASL_PASSWORD in the environment is not UTF-8" in done.exception.message


@pytest.mark.parametrize(("timeout_ms", "said"), [(300, 300), (60_000, 5_000)])
def test_connecting_takes_no_longer_than_the_whole_may(timeout_ms: int, said: int) -> None:
    cluster = Brokers("127.0.0.1:1", NO_SECURITY).connect(timeout_ms)
    assert cluster._connect_timeout_ms == said
