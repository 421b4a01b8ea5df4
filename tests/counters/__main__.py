"""kraftpy with counters: `python -m tests.counters NAME dev ...`; the nodes are forked from it."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from typing import Any

from kraftpy.core.config.addresses import Address
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.server.broker import Broker
from tests.counters.client import address, ask
from tests.counters.coordinator import Counters
from tests.counters.machine import Answer, Mirror

LOAD_WAIT_S = 2.0


class Server:
    """The counters of one broker."""

    def __init__(self, broker: Broker, name: str) -> None:
        self._loop = broker.loop
        self._name = name
        self._node_id = broker.node_id
        self._messages: set[asyncio.Task[None]] = set()
        self._server: asyncio.AbstractServer | None = None
        self._counters = Counters(broker, self._post, replicas=3)
        broker.coordinators.append(self._counters)

    async def start(self) -> None:
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(address(self._name, self._node_id))
        self._server = await asyncio.start_unix_server(self._serve, sock=sock)

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._messages:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = json.loads(await reader.readline())
            writer.write(json.dumps(await self._answer(**request)).encode() + b"\n")
            await writer.drain()
        except ConnectionError:
            pass  # whoever asked was killed
        finally:
            writer.close()

    async def _answer(self, operation: str, key: str, **rest: int) -> dict[str, Any]:
        counters = self._counters
        try:
            if operation == "find":
                deadline_s = self._loop.time() + LOAD_WAIT_S
                return {"node": await counters.coordinator_of(key, deadline_s)}
            if operation == "get":
                return {"error": "NONE", "value": counters.get(key)}
            answer = getattr(counters, operation)(key, **rest)
            if isinstance(answer, asyncio.Future):
                answer = await answer
        except KafkaError as error:
            answer = Answer(error.code)
        return {"error": answer.error.name, "value": answer.value}

    # -- messages to other brokers

    def _post(self, message: Mirror) -> None:
        task = self._loop.create_task(self._deliver(message))
        self._messages.add(task)
        task.add_done_callback(self._messages.discard)

    async def _deliver(self, message: Mirror) -> None:
        """Once: the machine asks again for what isn't confirmed."""
        try:
            node, key = await self._counters.mirror_of(message)
            request = {"operation": "raise_to", "key": key, "least": message.value}
            answer = await asyncio.to_thread(ask, self._name, node, **request)
            if answer is not None and answer["error"] == ErrorCode.NONE.name:
                self._counters.confirm(message)
        except KafkaError:
            pass  # not coordinated here any more, or there is nobody to tell


def install(name: str) -> None:
    """Every broker made from here on has counters."""
    init, start, stop = Broker.__init__, Broker.start, Broker.stop
    servers: dict[Broker, Server] = {}

    def init_with_counters(self: Broker, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options)
        servers[self] = Server(self, name)

    async def start_with_counters(
        self: Broker, sockets: list[socket.socket], metrics: Address | None = None
    ) -> None:
        await start(self, sockets, metrics)
        await servers[self].start()

    async def stop_with_counters(self: Broker) -> None:
        servers[self].stop()
        await stop(self)

    Broker.__init__ = init_with_counters  # type: ignore[method-assign]
    Broker.start = start_with_counters  # type: ignore[method-assign]
    Broker.stop = stop_with_counters  # type: ignore[method-assign]


if __name__ == "__main__":
    from kraftpy.cli import main

    install(sys.argv.pop(1))
    main()
