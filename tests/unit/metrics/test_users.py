"""Users of metrics and the page: lines of their file, passwords, and what is known again."""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kraftpy.metrics.users import FILE_MAX_BYTES, SALT_BYTES, Users, UsersError, hashed, parse_users

SALT = bytes(range(SALT_BYTES))
MARKER = "marker-password-7"


def line(name: str, password: str, work: int = 4) -> str:
    """A line of the file, made without the code that is tested."""
    key = hashlib.scrypt(password.encode(), salt=SALT, n=1 << work, r=8, p=1, dklen=32)
    salt_text, key_text = (base64.b64encode(each).decode().rstrip("=") for each in (SALT, key))
    return f"{name}:$scrypt$ln={work},r=8,p=1${salt_text}${key_text}\n"


@pytest.fixture
def users(tmp_path: Path) -> Callable[..., Users]:
    """Users of a file with these lines, which is `users` in the test's folder."""

    def make(*lines: str) -> Users:
        path = tmp_path / "users"
        path.write_text("".join(lines))
        return Users(path)

    return make


@pytest.fixture
def hashes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, int]]:
    """The passwords that have been hashed, and by how much work."""
    seen: list[tuple[bytes, int]] = []
    real: Callable[..., bytes] = hashlib.scrypt

    def counted(password: bytes, **options: Any) -> bytes:
        seen.append((password, options["n"]))
        return real(password, **options)

    monkeypatch.setattr(hashlib, "scrypt", counted)
    return seen


def test_a_line_that_was_written_is_read() -> None:
    made = hashed("wonder", SALT)
    text = f"# who scrapes\n\n  prometheus:{made}\n"
    assert parse_users(text) == {"prometheus": made}
    assert made.fits(b"wonder")
    assert not made.fits(b"Wonder")


@pytest.mark.parametrize(
    "text",
    [
        "alice\n",
        "alice:secret\n",
        f"{line('', 'a')}",
        f"{line('al:ice', 'a')}",
        line("alice", "a") * 2,
        line("alice", "a").replace("scrypt", "sha512"),
        line("alice", "a").replace("$scrypt", "x$scrypt"),
        line("alice", "a").strip()[:-1],
        line("alice", "a").replace("ln=4", "ln=0"),
        line("alice", "a").replace("ln=4", "ln=17"),
        line("alice", "a").replace("ln=4", "ln=63"),
        line("alice", "a").replace("r=8", "r=99").replace("ln=4", "ln=14"),
        line("alice", "a").replace("p=1", "p=5"),
        line("alice", "a").replace("p=1", "p=٣"),
        "a" * 256 + line("", "a"),
    ],
)
def test_what_is_no_line_is_refused(text: str) -> None:
    with pytest.raises(UsersError, match=r"^line [12] "):
        parse_users(text)


def test_an_error_has_nothing_of_the_line() -> None:
    """Trap 23: somebody may have written a password there."""
    with pytest.raises(UsersError) as raised:
        parse_users(f"alice:{MARKER}\n")
    assert MARKER not in str(raised.value)


def test_what_was_right_isnt_hashed_again(
    users: Callable[..., Users], hashes: list[tuple[bytes, int]]
) -> None:
    some = users(line("alice", "wonder"), line("bob", "wonder"))
    hashes.clear()
    assert not some.knows("alice", b"wonder")
    assert some.check("alice", b"wonder")
    assert some.knows("alice", b"wonder")
    assert not some.knows("alice", b"wonder2")
    assert not some.knows("bob", b"wonder")
    assert len(hashes) == 1


def test_an_unknown_user_takes_what_a_wrong_password_takes(
    users: Callable[..., Users], hashes: list[tuple[bytes, int]]
) -> None:
    some = users(line("alice", "wonder", work=5))
    hashes.clear()
    assert not some.check("alice", b"x")
    assert not some.check("nobody", b"x")
    assert hashes == [(b"x", 32)] * 2
    assert not some.knows("nobody", b"x")


def test_a_changed_file_counts_at_once(users: Callable[..., Users], tmp_path: Path) -> None:
    some = users(line("alice", "wonder"), line("bob", "builder"))
    assert some.check("alice", b"wonder")
    assert some.check("bob", b"builder")
    (tmp_path / "users").write_text(line("alice", "other") + line("bob", "builder"))
    assert not some.knows("alice", b"wonder")
    assert some.knows("bob", b"builder")
    assert not some.check("alice", b"wonder")
    assert some.check("alice", b"other")


def test_a_file_that_cant_be_read_changes_nothing(
    users: Callable[..., Users], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    some = users(line("alice", "wonder"))
    (tmp_path / "users").write_text(f"alice:{MARKER}\n")
    with caplog.at_level(logging.INFO):
        assert some.check("alice", b"wonder")
        assert some.check("alice", b"wonder")
    (told,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "line 1 isn't" in told.getMessage()
    assert MARKER not in told.getMessage()
    (tmp_path / "users").unlink()
    assert some.check("alice", b"wonder")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\xff\n", "isn't UTF-8"),
        (b"#" * (FILE_MAX_BYTES + 1), "has more than"),
        (b"alice\n", "line 1 isn't"),
        (None, "No such file"),
    ],
)
def test_a_file_that_is_none_is_said(tmp_path: Path, content: bytes | None, problem: str) -> None:
    path = tmp_path / "users"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsersError, match=problem) as raised:
        Users(path)
    assert "kraftpy.metrics.users.file" in str(raised.value)
