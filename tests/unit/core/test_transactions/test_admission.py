"""Which transactional batches the leader of a partition takes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kraftpy.core.producers import ProducerStateManager
from kraftpy.core.transactions.admission import GAPS_MAX, Admission, NotAdmitted, Token
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.records import (
    BatchHeader,
    EndTxnMarker,
    build_batch,
    build_end_txn_marker,
    check_batch,
)

PID, NOW = 1000, 1_700_000_000_000
DAY = 86_400_000
OLD_EPOCH = ErrorCode.INVALID_PRODUCER_EPOCH


def batch(epoch: int, sequence: int = 0, *, offset: int = 0, producer_id: int = PID) -> BatchHeader:
    data = build_batch(
        [(1, None, b"x", [])],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )
    return check_batch(data)


class Partition:
    """A leader with its producers; what is written lies at one offset after the other."""

    def __init__(self) -> None:
        self.producers = ProducerStateManager()
        self.admission = Admission()
        self.end = 0

    def write(self, epoch: int, sequence: int = 0, token: Token | None = None) -> ErrorCode | None:
        header = batch(epoch, sequence, offset=self.end)
        try:
            self.admission.check(header, self.producers, NOW, named=True, token=token)
        except KafkaError as error:
            return error.code
        self.producers.update(header, NOW)
        self.end += 1
        return None

    def ask(self, epoch: int, version: int = 1) -> Token:
        """Asks, and hears that it's so."""
        token = self.admission.ask(PID, epoch, version)
        self.admission.vouch(token)
        return token

    def mark(self, epoch: int, version: int = 1) -> None:
        end = EndTxnMarker(True, 0)
        data = build_end_txn_marker(
            end, producer_id=PID, producer_epoch=epoch, timestamp_ms=1, base_offset=self.end
        )
        if self.producers.check_marker(PID, epoch, end, version):
            self.producers.update(check_batch(data), NOW, end)
            self.end += 1
        self.admission.ended(PID, epoch, version)


def test_nobody_is_admitted_whom_the_coordinator_was_not_asked_for() -> None:
    partition = Partition()
    assert partition.write(0) is ErrorCode.INVALID_TXN_STATE
    with pytest.raises(NotAdmitted, match="no transaction open here"):
        partition.admission.check(batch(0), partition.producers, NOW, named=True)
    token = partition.admission.ask(PID, 0, 1)
    assert partition.write(0, token=token) is ErrorCode.INVALID_TXN_STATE  # no answer yet
    partition.admission.vouch(token)
    assert partition.write(0, token=token) is None
    partition.admission.settle(token)
    assert partition.write(0, 1) is None  # it is open here


def test_who_does_not_say_whose_transaction_it_is_is_refused() -> None:
    partition = Partition()
    token = partition.ask(0)
    assert partition.write(0, token=token) is None
    with pytest.raises(KafkaError) as caught:
        partition.admission.check(batch(0, 1), partition.producers, NOW, named=False, token=token)
    assert caught.value.code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_token_is_for_one_producer_in_one_epoch() -> None:
    partition = Partition()
    token = partition.ask(1)
    assert partition.write(2, token=token) is ErrorCode.INVALID_TXN_STATE
    header = batch(1, producer_id=PID + 1)
    with pytest.raises(NotAdmitted):
        partition.admission.check(header, partition.producers, NOW, named=True, token=token)
    assert partition.write(1, token=token) is None
    # An open transaction admits its own epoch only.
    assert partition.write(2) is ErrorCode.INVALID_TXN_STATE


def test_a_token_is_of_no_use_once_it_is_settled_or_to_another_leader() -> None:
    partition = Partition()
    token = partition.ask(0)
    partition.admission.settle(token)
    assert partition.write(0, token=token) is ErrorCode.INVALID_TXN_STATE
    token = partition.ask(0)
    partition.admission = Admission()
    assert partition.write(0, token=token) is ErrorCode.INVALID_TXN_STATE


def test_token_aba() -> None:
    """A marker came between the question and the append: what was asked about has ended."""
    partition = Partition()
    token = partition.ask(0)
    partition.mark(0)
    assert partition.write(0, token=token) is ErrorCode.INVALID_TXN_STATE
    # Also if one like it is in the log already, and nothing was written.
    token = partition.ask(0)
    end = partition.end
    partition.mark(0)
    assert partition.end == end
    assert partition.write(0, token=token) is ErrorCode.INVALID_TXN_STATE


def test_a_marker_of_version_2_leaves_the_next_transactions_token_alone() -> None:
    """Its epoch is that of the next one, which may have asked before the marker came."""
    partition = Partition()
    assert partition.write(0, token=partition.ask(0, 2)) is None
    late, following = partition.ask(0, 2), partition.ask(1, 2)
    partition.mark(1, 2)
    assert partition.write(0, 1, token=late) is OLD_EPOCH
    assert partition.write(1, token=following) is None
    # By version 1 a marker with that epoch ends it.
    following = partition.ask(2)
    partition.mark(2)
    assert partition.write(2, token=following) is ErrorCode.INVALID_TXN_STATE


def test_stale_epoch_first() -> None:
    """KAFKA-19690: a fenced producer hears that it is, and not that it has no transaction."""
    partition = Partition()
    assert partition.write(3, token=partition.ask(3)) is None
    stale = partition.ask(2)
    assert partition.write(2) is OLD_EPOCH
    assert partition.write(2, token=stale) is OLD_EPOCH
    partition.mark(4, 2)
    assert partition.write(3, 1) is OLD_EPOCH


@pytest.mark.parametrize("version", [1, 2])
def test_late_produce(version: int) -> None:
    """A batch that comes after its transaction's end is in no transaction."""
    partition = Partition()
    assert partition.write(0, token=partition.ask(0, version)) is None
    partition.mark(version - 1, version)
    expected = OLD_EPOCH if version == 2 else ErrorCode.INVALID_TXN_STATE
    assert partition.write(0, 1) is expected
    assert partition.producers.last_stable_offset(partition.end) == 0
    partition.producers.advance_high_watermark(partition.end)
    assert partition.producers.last_stable_offset(partition.end) == partition.end


def test_without_state_version_2_begins_with_sequence_0() -> None:
    """KAFKA-18202: each of its transactions begins anew, so something is missing."""
    partition = Partition()
    token = partition.ask(5, 2)
    assert partition.write(5, 7, token=token) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.write(5, 0, token=token) is None
    older = Partition()
    assert older.write(5, 7, token=older.ask(5, 1)) is None


def test_what_was_refused_comes_first() -> None:
    """Where nothing is known of the producer a later batch would leave a gap."""
    partition = Partition()
    first, second = batch(0, 4), batch(0, 5)
    partition.admission.refused(second)
    partition.admission.refused(first)
    token = partition.ask(0)
    assert partition.write(0, 5, token) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.write(0, 4, token) is None
    assert partition.write(0, 5) is None


def test_a_gap_is_of_one_epoch_and_transaction() -> None:
    partition = Partition()
    partition.admission.refused(batch(0, 4))
    assert partition.write(1, 5, partition.ask(1)) is None
    partition = Partition()
    partition.admission.refused(batch(0, 4))
    partition.admission.ended(PID, 0, 0)
    assert partition.write(0, 5, partition.ask(0)) is None


def test_so_many_gaps_are_known() -> None:
    partition = Partition()
    for number in range(GAPS_MAX + 1):
        partition.admission.refused(batch(0, 4, producer_id=PID + number))
    assert partition.write(0, 5, partition.ask(0)) is None


def test_who_was_forgotten_has_no_stale_epoch() -> None:
    partition = Partition()
    assert partition.write(3, token=partition.ask(3)) is None
    partition.mark(3)
    token = partition.ask(2)
    assert partition.write(2, token=token) is OLD_EPOCH
    header = batch(2)
    partition.admission.check(header, partition.producers, NOW + DAY, named=True, token=token)


# Against a coordinator

EVENTS = st.lists(
    st.sampled_from(["begin", "ask", "ask", "answer", "append", "append", "end", "mark", "late"]),
    min_size=10,
    max_size=60,
)


class Coordinator:
    """One producer's transactions; questions, answers and markers take their time.

    `ongoing` is the epoch of the transaction that the partition is in, None if there is none.
    """

    def __init__(self, version: int) -> None:
        self.version = version
        self.partition = Partition()
        self.epoch = self.sequence = 0
        self.ongoing: int | None = None
        self.marker: int | None = None  # its epoch, on its way
        self.asked: list[tuple[Token, int]] = []
        self.answered: list[tuple[Token, int]] = []
        self.first_sent: tuple[int, int] | None = None

    def begin(self) -> None:
        if self.ongoing is None:
            self.ongoing = self.epoch

    def ask(self) -> None:
        self._ask(self.epoch, self.sequence)

    def _ask(self, epoch: int, sequence: int) -> None:
        token = self.partition.admission.ask(PID, epoch, self.version)
        self.asked.append((token, sequence))

    def late(self) -> None:
        """A zombie's batch comes, in an epoch that once was the producer's."""
        if self.first_sent is not None:
            self._ask(*self.first_sent)

    def answer(self) -> None:
        if self.asked:
            token, sequence = self.asked.pop(0)
            if self.ongoing == token.epoch and self.marker is None:
                self.partition.admission.vouch(token)
            self.answered.append((token, sequence))

    def append(self) -> None:
        if self.answered:
            token, sequence = self.answered.pop(0)
            if self.partition.write(token.epoch, sequence, token) is None:
                assert self.ongoing == token.epoch
                self.first_sent = self.first_sent or (token.epoch, sequence)
                self.sequence += 1
            self.partition.admission.settle(token)

    def end(self) -> None:
        if self.ongoing is not None and self.marker is None:
            if self.version == 2:
                self.epoch += 1
                self.sequence = 0
            self.marker = self.epoch

    def mark(self) -> None:
        if self.marker is not None:
            self.partition.mark(self.marker, self.version)
            self.ongoing = self.marker = None


@settings(max_examples=300)
@given(EVENTS, st.sampled_from([1, 2]))
def test_what_is_admitted_is_ended(events: list[str], version: int) -> None:
    """Whatever is late: nothing is open that the coordinator doesn't know of."""
    coordinator = Coordinator(version)
    for event in events:
        getattr(coordinator, event)()
        producers = coordinator.partition.producers.active()
        if any(each.txn_first_offset >= 0 for _, each in producers):
            assert coordinator.ongoing is not None


def test_who_asks_while_it_is_checked_asks_only_what_has_to_be_asked() -> None:
    partition = Partition()
    asked: list[int] = []
    mark: list[int] = []

    def ask(header: BatchHeader) -> Token | None:
        asked.append(header.producer_epoch)
        token = partition.ask(header.producer_epoch)
        for epoch in mark:
            partition.mark(epoch)
        return token

    def check(epoch: int, sequence: int = 0, token: Token | None = None) -> None:
        header = batch(epoch, sequence, offset=partition.end)
        partition.admission.check(
            header, partition.producers, NOW, named=True, token=token, ask=ask
        )

    mark.append(3)  # the transaction has ended by the time there is an answer
    with pytest.raises(NotAdmitted):
        check(3)
    mark.clear()
    check(3)
    assert asked == [3, 3]
    with pytest.raises(KafkaError) as caught:
        check(2)
    assert caught.value.code is OLD_EPOCH
    assert partition.write(3, token=partition.ask(3)) is None
    check(3, 1)  # it is open
    with pytest.raises(NotAdmitted):
        check(4, token=partition.ask(5))  # it has been asked
    assert asked == [3, 3]


def test_who_asks_while_it_is_checked_may_have_no_answer_yet() -> None:
    partition = Partition()
    with pytest.raises(NotAdmitted):
        partition.admission.check(
            batch(0), partition.producers, NOW, named=True, ask=lambda header: None
        )
    assert partition.write(0) is ErrorCode.INVALID_TXN_STATE


def test_who_asks_while_it_is_checked_begins_with_the_first_sequence_all_the_same() -> None:
    partition = Partition()
    with pytest.raises(KafkaError) as caught:
        partition.admission.check(
            batch(0, 1),
            partition.producers,
            NOW,
            named=True,
            ask=lambda header: partition.ask(header.producer_epoch, 2),
        )
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
