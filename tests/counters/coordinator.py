"""The operations of the counters, and nothing else: the rest is the runtime's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kraftpy.server.coordination.internal_topic import InternalTopic
from kraftpy.server.coordination.partition import CoordinatorLog
from kraftpy.server.coordination.runtime import CoordinatorRuntime, Host
from tests.counters.machine import (
    COUNTS,
    LIMITS,
    MIRROR,
    Answer,
    CounterCodec,
    CounterMachine,
    Mirror,
)

COUNTS_TOPIC = "__counters"
LIMITS_TOPIC = "__counter_limits"
PARTITIONS = 4

Answering = Answer | asyncio.Future[Answer]


class Counters(CoordinatorRuntime[CounterMachine]):
    """`post` takes messages for other brokers; with `limits` there is a second log."""

    write_timeout_ms = 5_000

    def __init__(
        self, host: Host, post: Callable[[Mirror], None], *, replicas: int, limits: bool = False
    ) -> None:
        topic = InternalTopic(
            host,
            COUNTS_TOPIC,
            partitions=PARTITIONS,
            replication_factor=replicas,
            configs={"cleanup.policy": "compact"},
            setting="counters.replication.factor",
        )
        logs: list[CoordinatorLog[CounterMachine]] = [
            CoordinatorLog(COUNTS_TOPIC, CounterCodec(COUNTS))
        ]
        if limits:
            logs.append(CoordinatorLog(LIMITS_TOPIC, CounterCodec(LIMITS)))
        super().__init__(host, "counter", topic, logs, CounterMachine)
        self._post = post

    def contents(self, machine: CounterMachine) -> str:
        return f"{len(machine.values)} counters"

    def send(self, message: Any) -> None:
        self._post(message)

    def get(self, key: str) -> int:
        return self.read(key, lambda machine, now_ms: machine.get(key))

    def add(self, key: str, amount: int) -> Answering:
        return self.write(
            key, lambda machine, token, now_ms: machine.add(token, key, amount, now_ms)
        )

    def raise_to(self, key: str, least: int) -> Answering:
        return self.write(
            key, lambda machine, token, now_ms: machine.raise_to(token, key, least, now_ms)
        )

    def limit(self, key: str, most: int) -> Answering:
        return self.write(key, lambda machine, token, now_ms: machine.limit(token, key, most))

    def wait(self, key: str, value: int, timeout_ms: int) -> Answering:
        return self.write(
            key,
            lambda machine, token, now_ms: machine.wait(token, key, value, timeout_ms, now_ms),
            lambda machine, token, now_ms: machine.abandon(token),
        )

    def confirm(self, message: Mirror) -> Answering:
        return self.write(
            message.key, lambda machine, token, now_ms: machine.confirm(token, message)
        )

    async def mirror_of(self, message: Mirror) -> tuple[int, str]:
        """The broker that coordinates the counter's mirror, and that one's key."""
        key = MIRROR + message.key
        return await self.coordinator_of(key, self._loop.time()), key
