"""A member that shares a partition: `python -m tests.demo.cooperating BOOTSTRAP TOPIC GROUP`.

Each record is worked on for five milliseconds, one after the other. It prints `shares` and its
slots whenever these change, and `done OFFSET KEY BEGIN END` after each record, with the times in
nanoseconds of the machine's clock. The end of stdin ends it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time

from kraftpy.client.cluster import Cluster
from kraftpy.client.consumer import Consumer
from kraftpy.client.group import GroupTimes
from kraftpy.protocol.key_hash import SLOTS, slot_of

WORK_S = 0.005
SESSION_MS = 1_000
ASSIGNOR = "kraftpy-cooperative-sticky"
TIMES = GroupTimes(session_timeout_ms=SESSION_MS, heartbeat_interval_ms=100)
_AT_ONCE = 20
_POLL_MS = 50


class Worker:
    def __init__(self, consumer: Consumer, topic: str) -> None:
        self._consumer = consumer
        self._name = topic, 0
        self._shown: list[tuple[int, int]] | None = None

    async def run(self) -> None:
        self._consumer.subscribe([self._name[0]])
        while True:
            records = await self._consumer.poll(_POLL_MS, max_records=_AT_ONCE)
            self._show_shares()
            for record in records:
                begin = time.monotonic_ns()
                await asyncio.to_thread(time.sleep, WORK_S)
                assert record.key is not None
                print(
                    "done",
                    record.offset,
                    record.key.decode(),
                    begin,
                    time.monotonic_ns(),
                    flush=True,
                )

    def _show_shares(self) -> None:
        slices = self._consumer.shares.get(self._name)
        slots = [] if slices is None else slots_of(slices)
        if slots != self._shown:
            self._shown = slots
            print("shares", *(f"{first}-{last}" for first, last in slots), flush=True)


def slots_of(slices: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Hashes as slots; a whole partition has no slices."""
    return [(slot_of(low), slot_of(high)) for low, high in slices] or [(0, SLOTS - 1)]


async def main(bootstrap: str, topic: str, group: str) -> None:
    async with (
        Cluster(bootstrap) as cluster,
        Consumer(
            cluster,
            group_id=group,
            assignors=[ASSIGNOR],
            times=TIMES,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=100,
            fetch_max_wait_ms=50,
        ) as consumer,
    ):
        work = asyncio.create_task(Worker(consumer, topic).run())
        end = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        await asyncio.wait([work, end], return_when=asyncio.FIRST_COMPLETED)
        work.cancel()
        for result in await asyncio.gather(work, return_exceptions=True):
            if isinstance(result, Exception):
                raise result


if __name__ == "__main__":
    # A commit that comes in a rebalance is refused and made again: no news.
    logging.getLogger().addHandler(logging.NullHandler())
    asyncio.run(main(*sys.argv[1:]))
