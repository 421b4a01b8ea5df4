"""Rules of transactions, each taken out of a build: see `broken`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kraftpy.core.groups.pending_offsets import TransactionalOffsets
from kraftpy.core.groups.transactions import TransactionalCommits
from kraftpy.core.producers import Duplicate, ProducerStateManager
from kraftpy.core.transactions import VERSION_0, Transaction, rules
from kraftpy.core.transactions.admission import Admission
from kraftpy.core.transactions.markers import OwedMarkers
from kraftpy.core.transactions.rules import Answer, Step
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.server.coordination import marker_writes
from kraftpy.server.coordination.transaction_coordinator import TRANSACTIONS_TOPIC
from kraftpy.server.coordination.transaction_questions import TransactionQuestions
from kraftpy.server.replication.partition import Partition
from kraftpy.server.replication.replicas import ReplicaManager


def lso_ignored() -> None:
    """Readers of committed records get everything up to the high watermark."""
    Partition.last_stable_offset = property(  # type: ignore[assignment, method-assign]
        lambda self: self.high_watermark
    )


def marker_unreplicated() -> None:
    """A marker is answered when the leader alone has it."""
    marker_writes._committed = lambda partition, offset: (
        lambda ended: ended(  # type: ignore[assignment]
            ErrorCode.NONE
        )
    )


def take_appended_for_committed(takes: Callable[[str], bool]) -> None:
    """Coordinators don't wait for the replicas of these topics."""
    append = ReplicaManager.append_records

    def append_records(
        self: ReplicaManager, topic: str, partition: int, batch: bytes
    ) -> asyncio.Future[int]:
        target = self.get(topic, partition)
        offset = -1 if target is None else target.log.log_end_offset
        done = append(self, topic, partition, batch)
        if takes(topic) and not done.done() and offset >= 0:
            done.set_result(offset)
        return done

    ReplicaManager.append_records = append_records  # type: ignore[method-assign]


def prepare_unreplicated() -> None:
    """A transaction coordinator takes what it has appended for committed."""
    take_appended_for_committed(lambda topic: topic == TRANSACTIONS_TOPIC)


def complete_early() -> None:
    """A transaction is complete when the first of its partitions has the marker."""
    owe = OwedMarkers.owe

    def owe_one(self: OwedMarkers, owner: int, markers: Any, now_ms: int) -> None:
        first = frozenset(sorted(markers.partitions)[:1])
        owe(self, owner, markers._replace(partitions=first), now_ms)

    OwedMarkers.owe = owe_one  # type: ignore[method-assign]


def no_fencing() -> None:
    """Nobody minds an older epoch: neither coordinators nor partitions."""
    check = ProducerStateManager.check

    def check_sequence(self: ProducerStateManager, header: Any, now_ms: int) -> Duplicate | None:
        try:
            return check(self, header, now_ms)
        except KafkaError:
            return None

    def judge_owner(current: Transaction, producer_id: int, epoch: int) -> Answer | None:
        is_owner = producer_id == current.producer_id
        return None if is_owner else Answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)

    ProducerStateManager.check = check_sequence  # type: ignore[method-assign]
    ProducerStateManager.check_marker = lambda *_: True  # type: ignore[method-assign]
    Admission.check = lambda *_, **__: None  # type: ignore[assignment, method-assign]
    rules._judge_owner = judge_owner


def epoch_not_bumped() -> None:
    """The end of a transaction gives its producer no new epoch, in the second version either."""
    prepare = rules._prepare
    check_marker = ProducerStateManager.check_marker

    def prepare_in_the_same_epoch(current: Transaction, *more: Any, **kinds: Any) -> Any:
        verdict = prepare(current, *more, **kinds)
        if not isinstance(verdict, Step):
            return verdict
        epoch = current.producer_epoch
        same = verdict.transaction._replace(producer_epoch=epoch)
        return Step(same, Answer(ErrorCode.NONE, current.producer_id, epoch))

    def check_as_before(
        self: ProducerStateManager, producer_id: int, epoch: int, marker: Any, _: int
    ) -> bool:
        return check_marker(self, producer_id, epoch, marker, VERSION_0)

    rules._prepare = prepare_in_the_same_epoch
    ProducerStateManager.check_marker = check_as_before  # type: ignore[method-assign]


def no_admission() -> None:
    """A partition takes a batch whatever the coordinator says of its transaction."""
    ask: Callable[..., Any] = TransactionQuestions.admit

    def admit(self: TransactionQuestions, *about: Any) -> Any:
        told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        partitions = about[2]
        ask(self, *about).add_done_callback(
            lambda _: told.set_result(dict.fromkeys(partitions, ErrorCode.NONE))
        )
        return told

    TransactionQuestions.admit = admit  # type: ignore[assignment, method-assign]


def pending_visible() -> None:
    """Offsets of a transaction count before it has ended."""
    replay = TransactionalCommits.replay

    def replay_at_once(self: TransactionalCommits, records: Any) -> set[str]:
        if isinstance(records, TransactionalOffsets):
            self._offsets.replay(list(records))
            return {record.group_id for record in records}
        return replay(self, records)

    TransactionalCommits.replay = replay_at_once  # type: ignore[method-assign]
    TransactionalCommits.unstable = lambda *_: set()  # type: ignore[method-assign]
