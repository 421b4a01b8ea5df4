"""What a client hears of a handler that fails: an error, or nothing more; never a success."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kraftpy.protocol import codec, messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.server.dispatch import Dispatcher
from kraftpy.server.handlers import groups  # noqa: F401 - registers its handlers


class Connection:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.closed = False
        self.reason = ""
        self.sent = b""
        self.listener = self.local_host = self.peer = ""
        self.local_port = 0

    def close(self, reason: str) -> None:
        self.closed, self.reason = True, reason

    def respond(self, parts: list[Any]) -> None:
        self.sent += b"".join(parts)


@pytest.mark.parametrize("version", [7, 8])
def test_a_failure_is_no_empty_success(version: int) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("a bug")

    broker: Any = SimpleNamespace(groups=SimpleNamespace(fetch_offsets=fail))
    kinds = messages.OffsetFetchRequest
    group = kinds.OffsetFetchRequestGroup("g")
    request = kinds("g", None) if version == 7 else kinds(groups=[group])
    parts = codec.encode_request(ApiKey.OFFSET_FETCH, version, 1, "client", request)
    connection: Any = Connection()
    Dispatcher(broker).dispatch(connection, memoryview(bytearray(b"".join(parts))))
    if version == 7:
        assert not connection.reason
        _, response = codec.decode_response(
            ApiKey.OFFSET_FETCH, version, memoryview(connection.sent)[4:]
        )
        assert response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    else:  # errors are each group's there
        assert not connection.sent
        assert "OFFSET_FETCH failed" in connection.reason
