"""A security monitor: addresses from which many logins fail within a minute.

    kraftpy dev                                               in another terminal
    python examples/security_monitor.py login 10.0.0.7 ada failed       five times
    python examples/security_monitor.py watch                 until Ctrl-C; --once: what is there
    python examples/security_monitor.py alerts

Failures are counted over a sliding minute, by the times of the records, so that a monitor that was
away comes to what one that was there came to. `alerts` is a table of the addresses that are over
the limit, a compacted topic: who follows it hears of each, who comes later finds those of now. The
counts are in memory alone. What is committed is where the oldest failure lies that still counts:
who watches next begins there, and has them again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import time
from collections import Counter, deque
from collections.abc import Iterable

from topics import COMPACT, ends_of, ensure, is_behind, table

from kraftpy.client import Cluster, Consumer, Producer

LOGINS, ALERTS = "logins", "alerts"
WINDOW_MS = 60_000
FAILURES_MAX = 5


class Counts:
    """The failures of each address within the window, whose end is the newest record."""

    def __init__(self, alerted: Iterable[str]) -> None:
        self._failures: deque[tuple[int, int, str]] = deque()
        self._counts: Counter[str] = Counter()
        self._alerted = set(alerted)

    def add(self, address: str, at_ms: int, offset: int) -> None:
        """Counts a failure."""
        self._failures.append((at_ms, offset, address))
        self._counts[address] += 1

    def expire(self, now_ms: int) -> set[str]:
        """Forgets what has left the window; the addresses that were over the limit until now."""
        fewer = set()
        while self._failures and self._failures[0][0] <= now_ms - WINDOW_MS:
            _, _, address = self._failures.popleft()
            self._counts[address] -= 1
            fewer.add(address)
        fallen = {each for each in fewer & self._alerted if self._counts[each] < FAILURES_MAX}
        self._alerted -= fallen
        for each in fewer:
            if not self._counts[each]:
                del self._counts[each]
        return fallen

    def is_new(self, address: str) -> bool:
        """Whether an address has just come over the limit."""
        if self._counts[address] < FAILURES_MAX or address in self._alerted:
            return False
        self._alerted.add(address)
        return True

    def oldest(self, otherwise: int) -> int:
        """The offset of the oldest failure that counts."""
        return self._failures[0][1] if self._failures else otherwise


async def login(cluster: Cluster, address: str, user: str, outcome: str, at_ms: int) -> None:
    async with Producer(cluster, key_serializer=str.encode) as producer:
        value = json.dumps({"user": user, "ok": outcome == "ok"}).encode()
        await producer.send_and_wait(LOGINS, value, key=address, timestamp_ms=at_ms)


async def alerts(cluster: Cluster) -> None:
    for address, value in sorted((await table(cluster, ALERTS)).items()):
        said = json.loads(value)
        what = f"{FAILURES_MAX} failed logins within a minute"
        print(f"{address}: {what}, as {said['user']} at {said['at']}")


async def watch(cluster: Cluster, *, once: bool) -> None:
    ends = await ends_of(cluster, [LOGINS])
    counts, since = Counts([]), None
    async with (
        Producer(cluster, key_serializer=str.encode) as producer,
        Consumer(
            cluster,
            group_id="security-monitor",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        ) as consumer,
    ):
        consumer.subscribe([LOGINS])
        while not once or await is_behind(consumer, ends):
            records = await consumer.poll()
            if not records:
                continue
            if since != consumer.generation:  # somebody else may have watched until now
                since, counts = consumer.generation, Counts(await table(cluster, ALERTS))
            written = []
            for record in records:
                address, said = (record.key or b"").decode(), json.loads(record.value or b"{}")
                if not said["ok"]:
                    counts.add(address, record.timestamp, record.offset)
                for fallen in counts.expire(record.timestamp):
                    written.append(await producer.send(ALERTS, None, key=fallen))
                if counts.is_new(address):
                    at = time.strftime("%F %T", time.gmtime(record.timestamp / 1000))
                    alert = json.dumps({"user": said["user"], "at": at}).encode()
                    written.append(await producer.send(ALERTS, alert, key=address))
            await asyncio.gather(*written)
            await consumer.commit({(LOGINS, 0): counts.oldest(records[-1].offset + 1)})


async def run(arguments: argparse.Namespace) -> None:
    async with Cluster(arguments.bootstrap) as cluster:
        await ensure(cluster, LOGINS)
        await ensure(cluster, ALERTS, COMPACT)
        match arguments.command:
            case "login":
                at_ms = arguments.at_ms or time.time_ns() // 1_000_000
                given = arguments.address, arguments.user, arguments.outcome
                await login(cluster, *given, at_ms)
            case "alerts":
                await alerts(cluster)
            case "watch":
                await watch(cluster, once=arguments.once)


def main() -> None:
    parser = argparse.ArgumentParser(description="Tells of addresses from which logins fail.")
    parser.add_argument("-b", "--bootstrap", default="127.0.0.1:9092")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("login")
    command.add_argument("address")
    command.add_argument("user")
    command.add_argument("outcome", choices=["ok", "failed"])
    command.add_argument("--at-ms", type=int, help="when, in ms since 1970; now by default")
    commands.add_parser("alerts")
    commands.add_parser("watch").add_argument("--once", action="store_true")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
