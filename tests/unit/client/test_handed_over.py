"""Transactions that one producer writes in and somebody else ends."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from kraftpy.client.cluster import Cluster
from kraftpy.client.transactional_producer import (
    OpenTransaction,
    ProducerFencedError,
    TransactionalProducer,
    end_transaction,
)
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError

from .peer import running
from .transaction_peer import Fault, TransactionPeer
from .transactional_work import GROUP, OFFSETS, STORED, is_first, produce, write_all

pytestmark = pytest.mark.usefixtures("quick")


def hand_over_and(peer: TransactionPeer, end: Callable[[Cluster, OpenTransaction], Any]) -> None:
    """A producer writes, hands its transaction over and is closed; then somebody ends it."""

    async def run() -> None:
        async with (
            asyncio.timeout(20),
            running(peer),
            Cluster(peer.bootstrap, request_timeout_ms=5000) as cluster,
        ):
            async with TransactionalProducer(cluster, "mine") as producer:
                await producer.begin_transaction()
                await producer.send("t", b"v", partition=0)
                await producer.send_offsets_to_transaction(OFFSETS, GROUP, "said")
                transaction = await producer.hand_over_transaction()
            assert transaction is not None
            assert (peer.committed(), peer.open_runs()) == ([], 1)
            await end(cluster, pickle.loads(pickle.dumps(transaction)))  # it travels

    asyncio.run(run())


@pytest.mark.parametrize("committed", [True, False])
def test_a_transaction_is_ended_by_another(peer: TransactionPeer, committed: bool) -> None:
    peer.fail(ApiKey.END_TXN, Fault.LOST, Fault.UNANSWERED, None)

    async def end(cluster: Cluster, transaction: OpenTransaction) -> None:
        for _ in range(2):  # a second time it is that end already
            await end_transaction(cluster, transaction, committed=committed)

    hand_over_and(peer, end)
    assert (peer.committed(), peer.open_runs()) == ([b"v"] if committed else [], 0)
    assert peer.group_offsets == (STORED if committed else {})
    versions = {version for key, version, _ in peer.requests if key == ApiKey.END_TXN}
    assert versions == {4 if is_first(peer) else 5}
    (commit,) = peer.asked(ApiKey.TXN_OFFSET_COMMIT)
    texts = {part.committed_metadata for topic in commit.topics for part in topic.partitions}
    assert texts == {"said"}


def test_a_transaction_that_was_handed_over_is_the_next_ones_to_abort(
    peer: TransactionPeer,
) -> None:
    async def end(cluster: Cluster, transaction: OpenTransaction) -> None:
        async with TransactionalProducer(cluster, "mine") as successor:
            await write_all(successor, b"a")
        for committed in (True, False):
            with pytest.raises(ProducerFencedError, match="open for more than its timeout"):
                await end_transaction(cluster, transaction, committed=committed)

    hand_over_and(peer, end)
    assert (peer.committed(), peer.open_runs()) == ([b"a", b"a"], 0)


def test_what_failed_cannot_be_handed_over(peer: TransactionPeer) -> None:
    peer.fail(ApiKey.PRODUCE, ErrorCode.MESSAGE_TOO_LARGE, None)

    async def work(producer: TransactionalProducer) -> None:
        with pytest.raises(RuntimeError, match="no transaction is open"):
            await producer.hand_over_transaction()
        await producer.begin_transaction()
        assert await producer.hand_over_transaction() is None
        await producer.begin_transaction()
        await producer.send("t", b"v")
        with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
            await producer.hand_over_transaction()
        await producer.abort_transaction()

    produce(peer, work)
    assert (peer.committed(), peer.open_runs()) == ([], 0)
