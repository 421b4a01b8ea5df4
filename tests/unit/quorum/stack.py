"""A controller and its brokers on one event loop, over real sockets."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from kraftpy.core.config import BrokerConfig
from kraftpy.quorum.client import ControllerClient
from kraftpy.quorum.controller import ControllerSettings
from kraftpy.quorum.credentials import Credentials, LinkTls, QuorumSecret
from kraftpy.quorum.files import FileLayer
from kraftpy.quorum.listener import Listener
from kraftpy.quorum.port import MachineType, Quorum
from kraftpy.quorum.replica import SNAPSHOT_INTERVAL_BYTES
from kraftpy.quorum.single import SingleVoter

from .standin import Values

SECRET = b"0123456789abcdef" * 2
CREDENTIALS = Credentials(QuorumSecret(SECRET))
VOTER = 1
TIMEOUT_MS = 10_000
SETTINGS = ControllerSettings.of(BrokerConfig())


def listening_socket(port: int = 0) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen(128)
    return sock


def port_of(sock: socket.socket) -> int:
    port: int = sock.getsockname()[1]
    return port


class Controller:
    """A back-end with its listener."""

    def __init__(
        self, quorum: Quorum, port: int = 0, settings: ControllerSettings = SETTINGS
    ) -> None:
        self.quorum = quorum
        self.listener = Listener(quorum, CREDENTIALS, settings)
        self._sock = listening_socket(port)
        self.port = port_of(self._sock)

    async def __aenter__(self) -> Controller:
        await self.listener.start(self._sock)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.listener.close()


@contextlib.asynccontextmanager
async def controller(
    folder: Path,
    *,
    port: int = 0,
    files: FileLayer | None = None,
    snapshot_interval_bytes: int = SNAPSHOT_INTERVAL_BYTES,
    on_fatal: Callable[[Exception], None] | None = None,
    machine_type: MachineType = Values,
    settings: ControllerSettings = SETTINGS,
) -> AsyncIterator[Controller]:
    def fail(error: Exception) -> None:
        raise AssertionError("the controller failed") from error

    quorum = SingleVoter(
        folder,
        VOTER,
        machine_type,
        on_fatal or fail,
        files=files,
        snapshot_interval_bytes=snapshot_interval_bytes,
    )
    try:
        async with Controller(quorum, port, settings) as serving:
            yield serving
    finally:
        quorum.stop()


class Broker:
    """A client and the copy of the state that it keeps."""

    def __init__(
        self,
        voters: dict[int, int],
        *,
        node_id: int = 42,
        secret: bytes = SECRET,
        tls: LinkTls | None = None,
        machine_type: Any = Values,
        **options: Any,
    ) -> None:
        self.machine_type = machine_type
        self.copy = machine_type()
        self.seen: list[int] = []
        self.snapshots: list[int] = []
        self.client = ControllerClient(
            {voter: ("127.0.0.1", port) for voter, port in voters.items()},
            Credentials(QuorumSecret(secret), tls),
            node_id,
            on_commit=self.on_commit,
            on_snapshot=self.on_snapshot,
            **options,
        )

    def on_commit(self, index: int, command: dict[str, Any]) -> None:
        self.seen.append(index)
        self.copy.apply(index, command)

    def on_snapshot(self, state: dict[str, Any], index: int) -> None:
        self.snapshots.append(index)
        self.copy = self.machine_type.from_snapshot(state)

    async def add(self, value: Any, timeout_ms: int = TIMEOUT_MS) -> int:
        index, result = await self.client.propose({"add": value}, timeout_ms)
        assert not result.error
        return index

    async def do(self, command: dict[str, Any]) -> dict[str, Any]:
        """Have a command carried out that must succeed; returns its value."""
        _, result = await self.client.propose(command, TIMEOUT_MS)
        assert not result.error, result
        return result.value

    async def __aenter__(self) -> Broker:
        await self.client.start(TIMEOUT_MS)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
