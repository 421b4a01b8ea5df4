"""Members that share a partition: `python -m tests.bench.members BOOTSTRAP TOPIC GROUP COUNT`.

Each works on a record for five milliseconds. For every line that it reads, the process prints how
many records its members have processed, and when, in nanoseconds of the machine's clock. The end of
stdin ends it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import AsyncExitStack

from kraftpy.client.cluster import Cluster
from kraftpy.client.consumer import Consumer

WORK_S = 0.005
_AT_ONCE = 50
_POLL_MS = 200


class Count:
    """How many records were processed."""

    def __init__(self) -> None:
        self.value = 0


async def work(consumer: Consumer[bytes, bytes], topic: str, count: Count) -> None:
    consumer.subscribe([topic])
    while True:
        for _ in await consumer.poll(_POLL_MS, max_records=_AT_ONCE):
            await asyncio.sleep(WORK_S)
            count.value += 1


async def main(bootstrap: str, topic: str, group: str, members: int) -> None:
    count = Count()
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(Cluster(bootstrap))
        tasks = []
        for _ in range(members):
            consumer = Consumer(cluster, group_id=group, auto_offset_reset="earliest")
            await stack.enter_async_context(consumer)
            tasks.append(asyncio.create_task(work(consumer, topic, count)))
        while await asyncio.to_thread(sys.stdin.readline):
            print(count.value, time.monotonic_ns(), flush=True)
            for task in tasks:
                if task.done():
                    task.result()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    _bootstrap, _topic, _group, _members = sys.argv[1:]
    asyncio.run(main(_bootstrap, _topic, _group, int(_members)))
