"""The transactional producer among every trouble at once: its transactions are whole."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass

import pytest

from kraftpy.client.transactional_producer import (
    OutcomeUnknownError,
    ProducerFencedError,
    TransactionalProducer,
)
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError

from .transaction_peer import Fault, TransactionPeer
from .transactional_work import GROUP, produce

pytestmark = pytest.mark.usefixtures("quick")


@dataclass
class Story:
    """What a producer has done: the values of each transaction, and how it ended."""

    committed: list[bytes]
    aborted: list[bytes]
    unknown: list[list[bytes]]
    offsets: set[int]


class Trouble:
    """Faults by chance, of all requests but the producer's first one."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.rate = 0.0
        self._silent = 0

    def __call__(self, key: ApiKey, request: object) -> Fault | ErrorCode | None:
        if key == ApiKey.END_TXN and self.rate:
            if self._silent:
                self._silent -= 1
                return self.chance.choice([Fault.LOST, Fault.UNANSWERED, Fault.LATE])
            # Now and then for longer than the producer's patience.
            self._silent = 8 if self.chance.random() < 0.05 else 0
        if self.chance.random() >= self.rate:
            return None
        if key == ApiKey.METADATA:
            return Fault.LOST
        choices: list[Fault | ErrorCode] = [Fault.LOST, Fault.UNANSWERED]
        # A late one aborts what is open: then its producer is fenced, and nothing is lost.
        if key != ApiKey.INIT_PRODUCER_ID:
            choices.append(Fault.LATE)
        if key == ApiKey.PRODUCE:
            choices += [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.MESSAGE_TOO_LARGE]
        elif key == ApiKey.FIND_COORDINATOR:
            choices = [ErrorCode.COORDINATOR_NOT_AVAILABLE, Fault.LOST]
        else:
            choices += [ErrorCode.NOT_COORDINATOR, ErrorCode.CONCURRENT_TRANSACTIONS]
        if key == ApiKey.TXN_OFFSET_COMMIT:
            choices.append(ErrorCode.ILLEGAL_GENERATION)
        return self.chance.choice(choices)


@pytest.mark.parametrize("seed", range(12))
def test_transactions_are_whole_whatever_happens(peer: TransactionPeer, seed: int) -> None:
    trouble = Trouble(seed)
    peer.fault = trouble
    peer.busy = lambda: trouble.chance.randrange(3)
    peer.late_by = lambda: trouble.chance.randrange(12)
    story = Story([], [], [], {-1})

    async def work(producer: TransactionalProducer) -> None:
        await producer.begin_transaction()
        await producer.abort_transaction()
        trouble.rate = 0.15
        for number in range(25):
            await begin(producer)
            await tell(producer, story, trouble.chance, number)
        trouble.rate = 0.0
        await begin(producer)
        await producer.abort_transaction()

    produce(peer, work, max_block_ms=100)
    found = peer.committed()
    assert len(set(found)) == len(found)
    assert not set(found) & set(story.aborted)
    for values in story.unknown:
        assert set(values) <= set(found) or not set(values) & set(found)
    expected = set(story.committed).union(*story.unknown)
    assert set(story.committed) <= set(found) <= expected
    for log in peer.log.values():
        numbers = [int((value or b"").split(b"-")[0]) for value, run in log if run.committed]
        assert numbers == sorted(numbers)
    assert peer.group_offsets.get(("g", "t", 0), -1) in story.offsets
    assert peer.open_runs() == 0
    assert story.committed
    assert story.aborted


async def begin(producer: TransactionalProducer) -> None:
    """Until it can: what ended before may take longer than a producer waits."""
    while True:
        with contextlib.suppress(ConnectionError, KafkaError):
            return await producer.begin_transaction()


async def tell(
    producer: TransactionalProducer, story: Story, chance: random.Random, number: int
) -> None:
    """One transaction, and what is known of it."""
    values = [b"%d-%d" % (number, n) for n in range(chance.randrange(1, 5))]
    with_offsets = chance.random() < 0.5
    try:
        for value in values:
            await producer.send("t", value, partition=chance.randrange(2))
        if with_offsets:
            await producer.send_offsets_to_transaction({("t", 0): number}, GROUP)
        if chance.random() < 0.2:
            raise KeyError(number)
        await producer.commit_transaction()
    except OutcomeUnknownError:
        story.unknown.append(values)
        if with_offsets:
            story.offsets.add(number)
    except ProducerFencedError:
        raise  # nobody else has the id
    except (ConnectionError, KafkaError, KeyError):
        story.aborted += values
        if producer.in_transaction:
            with contextlib.suppress(ConnectionError, KafkaError):
                await producer.abort_transaction()
    else:
        story.committed += values
        if with_offsets:
            story.offsets = {number}
