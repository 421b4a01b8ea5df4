"""Members that share partitions, beside those of stock clients, and as stock tools see them."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from contextlib import AsyncExitStack
from pathlib import Path

from kraftpy.client.cluster import Cluster
from kraftpy.client.consumer import Consumer
from kraftpy.client.group_admin import GroupAdmin
from kraftpy.testing import Broker
from tests.clients.confluent import ConfluentKafka
from tests.clients.driver import Message
from tests.conformance.foreign import java_program
from tests.conformance.tool_runner import ToolRunner
from tests.server.mixed_groups import (
    HEARTBEAT_MS,
    PARTITIONS,
    SESSION_MS,
    TIMEOUT_S,
    TIMES,
    Librdkafka,
    Note,
    Processed,
    tell,
)


class Java:
    """A member of the Java client, in a process of its own."""

    def __init__(self, bootstrap: str, topic: str, note: Note) -> None:
        arguments = [bootstrap, topic, topic, str(SESSION_MS), str(HEARTBEAT_MS)]
        self._process = subprocess.Popen(
            [*java_program("GroupMember"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.owned = frozenset[int]()
        self._note = note
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            what, *fields = line.split()
            if what == "owned":
                self.owned = frozenset(map(int, fields))
            elif what == "had":
                at_ns, partition, offset, key = fields
                self._note(Processed(int(at_ns), int(partition), int(offset), key))
        self.owned = frozenset()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            assert self._process.wait(TIMEOUT_S) == 0
        finally:
            self._process.kill()
            self._thread.join()
            assert self._process.stdout is not None
            self._process.stdout.close()


async def test_ours_java_s_and_librdkafka_s_come_and_go(kraftpy: Broker, topic: str) -> None:
    configs = {"accept.range.fetch": "true"}
    ConfluentKafka(kraftpy.bootstrap).create_topic(topic, len(PARTITIONS), configs)
    await tell(kraftpy.bootstrap, topic, [Java, Librdkafka])


RECORDS, STABLE = 20, 3
TOOL = "kafka-consumer-groups"


async def test_kafka_consumer_groups_shows_and_resets_it(
    kraftpy: Broker, topic: str, tmp_path: Path
) -> None:
    """The lag is that of the stable offset, and a reset drops what is claimed above."""
    bootstrap = kraftpy.bootstrap
    stock = ConfluentKafka(bootstrap)
    stock.create_topic(topic, 1, {"accept.range.fetch": "true"})
    async with AsyncExitStack() as stack:
        tool = stack.enter_context(ToolRunner(tmp_path / "log"))
        cluster = await stack.enter_async_context(Cluster(bootstrap))
        admin = GroupAdmin(cluster)

        async def run(*arguments: str) -> str:
            server = ("--bootstrap-server", bootstrap, "--group", topic)
            ended = await asyncio.to_thread(tool.run, TOOL, *server, *arguments)
            assert ended.code == 0, ended
            return ended.out

        async with AsyncExitStack() as members:
            readers = [
                await members.enter_async_context(
                    Consumer(
                        cluster,
                        group_id=topic,
                        times=TIMES,
                        auto_offset_reset="earliest",
                        enable_auto_commit=False,
                        explicit_done=True,
                    )
                )
                for _ in range(2)
            ]
            for reader in readers:
                reader.subscribe([topic])
            async with asyncio.timeout(TIMEOUT_S):
                while not all(any(reader.shares.values()) for reader in readers):
                    for reader in readers:
                        await reader.poll(20)
            records = [Message(b"x", b"%d" % number) for number in range(RECORDS)]
            await asyncio.to_thread(stock.produce, topic, records)
            found = set[int]()
            async with asyncio.timeout(TIMEOUT_S):
                while len(found) < RECORDS:
                    for reader in readers:
                        for record in await reader.poll(20):
                            found.add(record.offset)
                            if record.offset != STABLE:
                                reader.done(record)
            for reader in readers:
                await reader.commit()
            rows = [line.split() for line in (await run("--describe")).splitlines()]
            shown = [row for row in rows if topic in row[:1]]
            assert [row[2:6] for row in shown] == [["0", "3", "20", "17"]] * 2
            assert len({row[6] for row in shown}) == 2
        committed = (await admin.committed(topic, ranges=True))[topic, 0]
        assert committed.offset == STABLE
        assert {each.last for each in committed.ranges} == {RECORDS - 1}
        await run("--reset-offsets", "--topic", topic, "--to-offset", "5", "--execute")
        committed = (await admin.committed(topic, ranges=True))[topic, 0]
        assert (committed.offset, list(committed.ranges)) == (5, [])
        assert await asyncio.to_thread(stock.committed, topic, 0, topic) == 5
