"""Tables, key=value arguments, sentences; and what `kraftpy dev` does to a properties file."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from kraftpy.cli.app import COMMANDS, SUMMARIES, app, shortened
from kraftpy.cli.common import (
    Failure,
    echo_table,
    group_failure,
    parse_key_values,
    run_client,
    styled,
    topic_failure,
)
from kraftpy.cli.health import ids_text, ranges_text, topic_rows
from kraftpy.cli.nodes import with_settings
from kraftpy.cli.server import load_config, parse_config
from kraftpy.client.cluster import NoBrokerError
from kraftpy.client.cluster_admin import ReplicatedPartition
from kraftpy.client.connection import MAY_WANT, ConnectionLostError, UntrustedError
from kraftpy.core.config import parse_properties
from kraftpy.protocol.errors import ErrorCode, KafkaError


def test_tables_align_numbers_right_and_text_left(capsys: pytest.CaptureFixture[str]) -> None:
    echo_table(("TOPIC", "PARTITIONS", "ISR"), [("orders", 12, "1"), ("x", 3, "1,2")])
    assert capsys.readouterr().out == (
        "TOPIC   PARTITIONS  ISR\n"
        "orders          12  1\n"
        "x                3  1,2\n"
    )  # fmt: skip


def test_what_is_not_known_counts_as_a_number_among_numbers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    echo_table(("LAG", "MEMBER"), [(12, "-"), ("-", "-")])
    assert capsys.readouterr().out == "LAG  MEMBER\n 12  -\n  -  -\n"


def test_an_empty_table_is_its_header(capsys: pytest.CaptureFixture[str]) -> None:
    echo_table(("A", "B"), [])
    assert capsys.readouterr().out == "A  B\n"


def test_names_are_shown_and_not_carried_out_by_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = ["grün", "\x1b[2J", "a\nb", "\x9b1m", "\u202e", "\ud800"]
    echo_table(("GROUP",), [(name,) for name in names])
    shown = capsys.readouterr().out.splitlines()
    assert shown == ["GROUP", "grün", r"\x1b[2J", r"a\nb", r"\x9b1m", r"\u202e", r"\ud800"]


def test_key_values() -> None:
    pairs = parse_key_values(["a=1", "b=", "c=x=y", "a=2"], "-c")
    assert pairs == [("a", "1"), ("b", ""), ("c", "x=y"), ("a", "2")]
    for bad in ("a", "=1", ""):
        with pytest.raises(click.BadParameter, match="is not KEY=VALUE"):
            parse_key_values([bad], "-c")


def test_errors_say_what_to_type_next() -> None:
    missing = topic_failure("t", KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    assert "kraftpy topic create t" in missing.message
    there = topic_failure("t", KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS))
    assert "kraftpy topic alter t" in there.message
    other = topic_failure("t", KafkaError(ErrorCode.INVALID_CONFIG, "no such key"))
    assert other.message == "topic 't': INVALID_CONFIG: no such key"


def test_errors_of_groups_say_what_to_type_next() -> None:
    for code, command in (
        (ErrorCode.GROUP_ID_NOT_FOUND, "`kraftpy group list`"),
        (ErrorCode.NON_EMPTY_GROUP, "`kraftpy group describe kitchen`"),
        (
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            "`kraftpy topic describe __individual_commit_offsets`",
        ),
    ):
        assert command in group_failure("kitchen", KafkaError(code)).message


def test_settings_replace_what_is_there_and_leave_the_rest() -> None:
    text = "# mine\nnode.id=1\nlisteners = PLAINTEXT://a:1\nlog.dirs=/x\n"
    changed = with_settings(
        text, {"listeners": "PLAINTEXT://b:2", "log.retention.ms": "5", "log.dirs": r"C:\x\1"}
    )
    assert parse_properties(changed) == {
        "node.id": "1",
        "listeners": "PLAINTEXT://b:2",
        "log.dirs": r"C:\x\1",
        "log.retention.ms": "5",
    }
    assert changed.startswith("# mine\n")
    assert with_settings(changed, {"log.retention.ms": "6"}).count("log.retention.ms") == 1


# -- the list of commands


def test_the_summaries_are_the_first_sentences_of_the_commands() -> None:
    found = {
        name: importlib.import_module(module).command.get_short_help_str(200)
        for name, module in COMMANDS.items()
    }
    assert found == SUMMARIES
    assert shortened("as it stands", 12) == "as it stands"
    assert shortened("one word more", 12) == "one word..."


def test_the_list_of_commands_needs_none_of_them() -> None:
    code = (
        "import sys; from kraftpy.cli.app import app\n"
        "try: app.main(['--help'])\n"
        "except SystemExit: print(*sorted(sys.modules), sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert "  transaction  List, describe and terminate" in done.stdout
    modules = {line for line in done.stdout.splitlines() if line.startswith("kraftpy.")}
    assert modules == {"kraftpy.cli", "kraftpy.cli.app", "kraftpy.cli.failure"}
    assert "\nasyncio\n" not in done.stdout


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("topc", "No such command 'topc'. Did you mean 'topic'?"),
        ("consumer", "No such command 'consumer'. Did you mean 'consume'?"),
        ("zzz", "No such command 'zzz'.\n"),
    ],
)
def test_a_command_that_there_is_not(typed: str, said: str) -> None:
    result = CliRunner().invoke(app, [typed])
    assert result.exit_code == 2
    assert said in result.output


# -- what to type next


@pytest.mark.parametrize(
    ("code", "points"),
    [
        (ErrorCode.REQUEST_TIMED_OUT, True),
        (ErrorCode.NOT_ENOUGH_REPLICAS, True),
        (ErrorCode.NOT_CONTROLLER, True),
        (ErrorCode.INVALID_PARTITIONS, False),
    ],
)
def test_what_an_outage_explains_points_to_the_health_of_the_cluster(
    code: ErrorCode, points: bool
) -> None:
    for failure in (topic_failure("t", KafkaError(code)), group_failure("g", KafkaError(code))):
        assert ("`kraftpy cluster health`" in failure.message) == points


def test_an_error_of_a_setting_names_the_file_or_the_option_that_it_came_from(
    tmp_path: Path,
) -> None:
    file = tmp_path / "mine.properties"
    file.write_text("node.id=1\nnum.partitions=x\n")
    with pytest.raises(click.ClickException, match=r"mine.properties: num.partitions=x: must be"):
        load_config(str(file))
    with pytest.raises(click.ClickException, match=r"^-c num.partitions=0: must be"):
        load_config(str(file), {"num.partitions": "0"})
    with pytest.raises(click.ClickException, match=r"^-c num.partiton: unknown broker setting"):
        load_config(str(file), {"num.partitions": "1", "num.partiton": "2"})
    text = "node.id=1\nnum.partitions=x\n"  # as `dev` has written it for its option
    with pytest.raises(click.ClickException, match=r"^-c num.partitions=x: must be"):
        parse_config(text, "/tmp/kraftpy-1/node1/server.properties", given=["num.partitions"])


def test_a_file_of_an_editor_of_windows_is_read_from_its_first_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.properties"
    file.write_text("node.id=7\r\n", encoding="utf-8-sig")
    assert load_config(str(file)).node_id == 7


# -- colours


def test_colours_are_for_terminals_that_want_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert styled("bad", fg="red") == "\x1b[31mbad\x1b[0m"
    echo_table(("A",), [("b",)])
    Failure("no", 1).show()
    assert capsys.readouterr() == ("A\nb\n", "kraftpy: no\n")
    monkeypatch.setenv("TERM", "dumb")
    assert styled("bad", fg="red") == "bad"
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert styled("bad", fg="red") == "bad"


# -- health by topic


def test_health_is_told_by_topic() -> None:
    def partition(topic: str, index: int, isr: tuple[int, ...]) -> ReplicatedPartition:
        return ReplicatedPartition(topic, index, isr[0], 0, (1, 2, 3), isr, (), ())

    some = [partition("a", index, (1, 3)) for index in (0, 1, 2, 5)]
    some += [partition("b", 0, (1,))]
    assert topic_rows("under-replicated", some) == [
        ("under-replicated", "a", 4, "0-2,5", "2"),
        ("under-replicated", "b", 1, "0", "2,3"),
    ]
    assert ids_text([]) == "-"
    assert ranges_text(range(0, 40, 2)) == "0,2,4,6,8,10,..."
    assert ranges_text(range(50)) == "0-49"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (UntrustedError("a:1: is it for this host?"), "a:1: is it for this host?"),
        (
            ConnectionLostError(f"a:1: {MAY_WANT} a login"),
            "a:1: it may want a login. Such settings are given by --command-config FILE or -X "
            "KEY=VALUE",
        ),
        (
            NoBrokerError("no broker answers: a:1", first_contact=True, asked=1),
            "no broker answers: a:1. Start a broker with `kraftpy dev`, or name yours with -b "
            "HOST:PORT",
        ),
        (
            NoBrokerError("no broker answers: a:1; b:1", first_contact=True, asked=2),
            "HOST:PORT. If these are yours, `kraftpy cluster health` shows which are back",
        ),
        (
            KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED),
            "`kraftpy acl check --principal User:NAME --group NAME` what is lacking, and allows it "
            "by `kraftpy acl add`",
        ),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_the_client_raises_becomes_a_sentence(error: Exception, said: str) -> None:
    async def work() -> None:
        raise error

    with pytest.raises(Failure) as failed:
        run_client(work())
    assert failed.value.message.endswith(said)
