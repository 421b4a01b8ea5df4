"""The program between the nodes of a test's cluster: TCP proxies whose links can be cut.

`python -m kraftpy.testing.networks.proxies` is started by `kraftpy.testing.networks`. It listens
for what the nodes dial of one another (the quorum's and the brokers' own listeners), finds out
which node dials, and passes the bytes on until it is told not to.

Rules:

* A link is a pair (sender, receiver) of node ids, so one direction can be cut by itself. A silent
  cut loses nothing: bytes wait, as in TCP over a network that drops packets, a new connection is
  accepted by nobody, and the end of a process is not seen across it. A hard cut resets both ends.
* A slow link holds each piece back for its time before the next one: it is late, and narrow.
* The node that dials is found by the peer's port: the kernel's table of connections names a socket,
  and the sockets of each node's processes are listed in /proc. Connections of others, and of a node
  with itself, always pass.
* It ends with its stdin.

stdin and stdout are lines of JSON: {"targets": [[node id, port], ...]}, what to listen for,
answered with {"ports": [...]}; and, each answered with {}: {"family": pid} (whose children are the
nodes), {"stall": [[sender, receiver], ...]}, {"slow": [[a, b, ms], ...]}, {"close": [[a, b], ...]},
{"heal": true}.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kraftpy.testing.networks.program import obey

_HOST = "127.0.0.1"
_CHUNK_BYTES = 1 << 18
_BACKLOG = 128
_TABLE_READS = 3
_RESET = struct.pack("ii", 1, 0)
_NODE_NAME = "kraftpy-"

_Pair = tuple[int, int]


class Proxies:
    """All links of one cluster, and what is to happen on them."""

    def __init__(self) -> None:
        self.stalled: set[_Pair] = set()
        self.closed: set[_Pair] = set()
        self.delays_s: dict[tuple[int | None, int | None], float] = {}
        self.changed = asyncio.Event()
        self._family: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def listen(self, target: int, port: int) -> int:
        """Listens for node `target`, which listens on `port` itself; the proxy's port."""
        listening = socket.create_server((_HOST, 0), backlog=_BACKLOG)
        listening.setblocking(False)
        own_port: int = listening.getsockname()[1]
        self._run(self._accept(listening, target, port))
        return own_port

    def answer(self, order: dict[str, Any]) -> dict[str, Any]:
        """Carries out a line of stdin."""
        if "targets" in order:
            return {"ports": [self.listen(node_id, port) for node_id, port in order["targets"]]}
        self._obey(order)
        return {}

    def _obey(self, order: dict[str, Any]) -> None:
        if "family" in order:
            self._family.set_result(order["family"])
        self.stalled.update((sender, receiver) for sender, receiver in order.get("stall", ()))
        for a, b in order.get("close", ()):
            self.closed.update(((a, b), (b, a)))
        for a, b, delay_ms in order.get("slow", ()):
            self.delays_s[a, b] = self.delays_s[b, a] = delay_ms / 1000
        if "heal" in order:
            self.stalled.clear()
            self.delays_s.clear()
            self.closed.clear()
        for connection in list(self._connections):
            if connection.link in self.closed:
                connection.reset()
        self.changed.set()
        self.changed = asyncio.Event()

    def _run(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listening: socket.socket, target: int, port: int) -> None:
        loop = asyncio.get_running_loop()
        while True:
            dialing, (_, dialing_port) = await loop.sock_accept(listening)
            self._run(self._serve(dialing, dialing_port, target, port))

    async def _serve(
        self, dialing: socket.socket, dialing_port: int, target: int, port: int
    ) -> None:
        family = await asyncio.shield(self._family)
        dialer = dialer_of(dialing_port, dialing.getsockname()[1], family)
        link = (dialer, target)
        if link in self.closed:
            _close(dialing, reset=True)
            return
        task = asyncio.current_task()
        assert task is not None
        connection = _Connection(self, dialing, link, task)
        self._connections.add(connection)
        try:
            await connection.run(port)
        finally:
            self._connections.discard(connection)

    async def passable(self, link: tuple[int | None, int | None]) -> None:
        """Waits until the link is not cut in this direction."""
        while link in self.stalled:
            await self.changed.wait()

    async def late(self, link: tuple[int | None, int | None]) -> None:
        """Waits as long as the link is slow, or until that changes."""
        delay_s = self.delays_s.get(link)
        if delay_s is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait(), delay_s)


class _Connection:
    """One connection of a dialing node through to its target."""

    def __init__(
        self,
        proxies: Proxies,
        dialing: socket.socket,
        link: tuple[int | None, int],
        task: asyncio.Task[None],
    ) -> None:
        self.link = link
        self._proxies = proxies
        self._sockets = [dialing]
        self._task = task
        dialing.setblocking(False)

    async def run(self, port: int) -> None:
        dialer, target = self.link
        sink = socket.socket()
        sink.setblocking(False)
        self._sockets.append(sink)
        source = self._sockets[0]
        broken = True
        try:
            # A handshake takes both directions.
            await self._proxies.passable((dialer, target))
            await self._proxies.passable((target, dialer))
            await asyncio.get_running_loop().sock_connect(sink, (_HOST, port))
            for each in self._sockets:
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(source, sink, (dialer, target)))
                both.create_task(self._pump(sink, source, (target, dialer)))
            broken = False
        except* OSError:
            pass
        finally:
            for each in self._sockets:
                _close(each, reset=broken)

    async def _pump(
        self, source: socket.socket, sink: socket.socket, link: tuple[int | None, int | None]
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._proxies.passable(link)
            data = await loop.sock_recv(source, _CHUNK_BYTES)
            await self._proxies.late(link)
            await self._proxies.passable(link)
            if not data:
                sink.shutdown(socket.SHUT_WR)
                return
            await loop.sock_sendall(sink, data)

    def reset(self) -> None:
        """Ends it, as seen from both sides."""
        self._task.cancel()


def _close(end: socket.socket, *, reset: bool) -> None:
    with contextlib.suppress(OSError):
        if reset:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    end.close()


def dialer_of(port: int, dialed: int, family: int) -> int | None:
    """The node whose process owns the connection from `port` to `dialed`; None for anybody else."""
    inode = _socket_inode(port, dialed)
    if inode is None:
        return None
    name = f"socket:[{inode}]"
    for child in _children(family):
        node_id = _node_id(child)
        if node_id is None:
            continue
        for pid in (child, *_children(child)):
            if name in _descriptors(pid):
                return node_id
    return None


def _socket_inode(port: int, dialed: int) -> str | None:
    """The kernel's name of a connection's socket; None if the dialer is gone.

    One port may dial several others at a time, so both ends count. The table is written while it
    changes, and may then lack a line.
    """
    for _ in range(_TABLE_READS):
        table = Path("/proc/net/tcp").read_text()
        start = table.find(f" 0100007F:{port:04X} 0100007F:{dialed:04X} ")
        if start >= 0:
            return table[start:].split(maxsplit=9)[8]
    return None


def _children(pid: int) -> Iterable[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _node_id(pid: int) -> int | None:
    """The id of the node whose broker process this is, by the name that it gave itself."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return None
    number = name.removeprefix(_NODE_NAME)
    return int(number) if number != name and number.isdigit() else None


def _descriptors(pid: int) -> set[str]:
    names = set()
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                names.add(str(entry.readlink()))
    return names


async def _main() -> None:
    await obey(Proxies().answer)


if __name__ == "__main__":
    asyncio.run(_main())
