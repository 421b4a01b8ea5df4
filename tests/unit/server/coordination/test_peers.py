"""Asking other brokers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kraftpy.client.connection import ConnectionLostError
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.server.coordination.peers import MARKERS, QUESTIONS, Lane, Peers


class Puppets(Peers):
    """Brokers that answer what the test says, or raise it."""

    def __init__(self) -> None:
        super().__init__(SimpleNamespace())  # type: ignore[arg-type]
        self.answer: Any = None

    async def connection(self, node_id: int, lane: Lane) -> Any:
        if isinstance(self.answer, ConnectionLostError):
            raise self.answer
        return SimpleNamespace(request=self._request)

    async def _request(self, message: str, *, timeout_ms: int, version: int | None) -> str:
        if isinstance(self.answer, Exception):
            raise self.answer
        return f"{message}: {self.answer}"


async def test_that_a_broker_does_not_answer_is_told_once_until_it_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    peers = Puppets()

    async def ask(answer: Any, node_id: int = 2, lane: Lane = MARKERS) -> str | None:
        caplog.clear()
        peers.answer = answer
        if not isinstance(answer, Exception):
            assert await peers.request(node_id, lane, "are you there", timeout_ms=1) == (
                f"are you there: {answer}"
            )
        else:
            with pytest.raises(type(answer)):
                await peers.request(node_id, lane, "are you there", timeout_ms=1)
        return caplog.messages[0] if caplog.messages else None

    gone, unknown = ConnectionLostError("it is gone"), KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    assert await ask(gone) == "broker 2 can't be sent markers: it is gone"
    assert await ask(gone) is await ask(unknown) is None
    assert await ask(gone, 3) == "broker 3 can't be sent markers: it is gone"
    assert await ask(gone, lane=QUESTIONS) == (
        "broker 2 can't be sent questions about transactions: it is gone"
    )
    assert await ask("yes") is None
    assert (await ask(unknown) or "").startswith("broker 2 can't be sent markers: ")
    await ask("yes")
    peers.closed = True
    assert await ask(gone) is None
