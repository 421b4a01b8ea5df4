"""Tables, key=value arguments, sentences; and what `kraftpy dev` does to a properties file."""

from __future__ import annotations

import click
import pytest

from kraftpy.cli.common import echo_table, group_failure, parse_key_values, topic_failure
from kraftpy.cli.nodes import with_settings
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
