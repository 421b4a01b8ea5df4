"""`kraftpy user`: what is said of names and passwords that can't be."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from kraftpy.cli import user
from kraftpy.cli.common import EXIT_USAGE, Failure

NOWHERE = ("-b", "127.0.0.1:1")


def test_a_name_that_cannot_log_in_by_http_is_shown() -> None:
    done = CliRunner().invoke(user.command, ["hash", "a:b"], input="secret\n")
    assert done.exit_code == EXIT_USAGE
    assert "'a:b' can't log in by HTTP" in done.output


@pytest.mark.parametrize("command", [("hash", "zed"), ("add", "zed", *NOWHERE)], ids=str)
@pytest.mark.parametrize(
    ("password", "said"),
    [
        (b"\xff", "not UTF-8"),
        (b"", "the password is empty"),
        (b"p" * 4097, "more than 4,096 characters"),
        ("\u00fc".encode() * 9000, "more than 4,096 characters"),
    ],
    ids=("bytes", "empty", "long", "longer"),
)
def test_what_is_no_password(command: tuple[str, ...], password: bytes, said: str) -> None:
    done = CliRunner().invoke(user.command, command, input=password + b"\n", standalone_mode=False)
    assert isinstance(done.exception, Failure), done.exception
    assert done.exception.code == EXIT_USAGE
    assert said in done.exception.message


def test_the_longest_password_is_taken_whole() -> None:
    password = "\U0001f511" * 4096
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kraftpy.metrics.users.PASSWORD_MAX_BYTES", 1 << 20)
        patch.setattr("kraftpy.metrics.users.hashed", lambda found, salt: found == password)
        done = CliRunner().invoke(user.command, ["hash", "zed"], input=f"{password}\r\n")
    assert done.output == "zed:True\n"
