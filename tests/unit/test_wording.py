"""What the operating system says of a connection, as people read it."""

from __future__ import annotations

import errno
import socket

import pytest

from kraftpy.wording import failure_text


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)"), "connection refused"),
        (OSError("Multiple exceptions: [Errno 111] x, [Errno 111] y"), "connection refused"),
        (
            socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
            "name or service not known",
        ),
        (OSError("something else"), "something else"),
        (OSError(), "OSError"),
    ],
)
def test_a_failure_is_in_the_systems_words(error: OSError, text: str) -> None:
    assert failure_text(error) == text
