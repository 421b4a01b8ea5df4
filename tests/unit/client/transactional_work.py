"""What tests have a transactional producer do at a broker that is played."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from kraftpy.client.cluster import Cluster
from kraftpy.client.coordinator import Generation, GroupMetadata
from kraftpy.client.transactional_producer import TransactionalProducer

from .peer import running
from .transaction_peer import TransactionPeer

Work = Callable[[TransactionalProducer], Awaitable[None]]

GROUP = GroupMetadata("g", Generation(3, "m", "i"))
OFFSETS = {("t", 0): 7, ("t", 1): 8}
STORED = {("g", "t", 0): 7, ("g", "t", 1): 8}


def is_first(peer: TransactionPeer) -> bool:
    return peer.features["transaction.version"] < 2


def produce(peer: TransactionPeer, work: Work, *, max_block_ms: int = 5000) -> None:
    async def run() -> None:
        async with (
            asyncio.timeout(20),
            running(peer),
            Cluster(peer.bootstrap, request_timeout_ms=5000) as cluster,
            TransactionalProducer(
                cluster, "mine", linger_ms=0, max_block_ms=max_block_ms
            ) as producer,
        ):
            await work(producer)

    asyncio.run(run())


async def write_all(producer: TransactionalProducer, tag: bytes) -> None:
    """A transaction with a record in each partition and a group's offsets."""
    async with producer.transaction():
        await producer.send("t", tag, partition=0)
        await producer.send("t", tag, partition=1)
        await producer.send_offsets_to_transaction(OFFSETS, GROUP)
