"""The sequence window, transactions and snapshot of one partition's producers."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from kraftpy.core.producers import (
    CompletedTransaction,
    Duplicate,
    ProducerStateManager,
)
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError
from kraftpy.protocol.records import (
    BatchHeader,
    EndTxnMarker,
    build_batch,
    build_end_txn_marker,
    check_batch,
)

PID = 1000
MAX_SEQUENCE = 2**31 - 1
NOW = 1_700_000_000_000
DAY = 86_400_000

OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
OLD_DUPLICATE = ErrorCode.DUPLICATE_SEQUENCE_NUMBER
OLD_EPOCH = ErrorCode.INVALID_PRODUCER_EPOCH
ACCEPT = None


def batch(
    sequence: int,
    count: int = 1,
    *,
    epoch: int = 0,
    producer_id: int = PID,
    offset: int = 0,
    transactional: bool = False,
    timestamp: int = 77,
) -> BatchHeader:
    data = build_batch(
        [(timestamp, None, None, [])] * count,
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    return check_batch(data)


def marker(
    offset: int, *, producer_id: int = PID, epoch: int = 0, committed: bool = True, coordinator=0
) -> tuple[BatchHeader, EndTxnMarker]:
    end = EndTxnMarker(committed, coordinator)
    data = build_end_txn_marker(
        end,
        producer_id=producer_id,
        producer_epoch=epoch,
        timestamp_ms=78,
        base_offset=offset,
    )
    return check_batch(data), end


def end_transaction(state: ProducerStateManager, *args, **kwargs) -> CompletedTransaction | None:
    header, end = marker(*args, **kwargs)
    return state.update(header, NOW, end)


def state_after(*writes: BatchHeader) -> ProducerStateManager:
    state = ProducerStateManager()
    for header in writes:
        state.update(header, NOW)
    return state


def verdict(state: ProducerStateManager, header: BatchHeader, now_ms: int = NOW):
    """None, a Duplicate, or the error code that `check` raises."""
    try:
        return state.check(header, now_ms)
    except KafkaError as error:
        return error.code


def run_of(*sequences: int, count: int = 2, epoch: int = 0) -> list[BatchHeader]:
    """Batches of `count` records at the offsets 100, 110, ... with these sequences."""
    return [
        batch(sequence, count, epoch=epoch, offset=100 + 10 * index, timestamp=index)
        for index, sequence in enumerate(sequences)
    ]


SIX = run_of(0, 2, 4, 6, 8, 10)
WRAPPING = run_of(MAX_SEQUENCE - 3, MAX_SEQUENCE - 1, 0, 2, 4, 6)
OVER_THE_EDGE = run_of(MAX_SEQUENCE - 2, MAX_SEQUENCE, 1)


@pytest.mark.parametrize(
    ("written", "sent", "expected"),
    [
        # nothing known: any sequence, as retention may have taken the state (KIP-360)
        ([], batch(0), ACCEPT),
        ([], batch(500, epoch=7), ACCEPT),
        # in order, and not
        (SIX, batch(12), ACCEPT),
        (SIX, batch(13), OUT_OF_ORDER),
        (SIX, batch(11), OUT_OF_ORDER),
        (SIX, batch(MAX_SEQUENCE), OUT_OF_ORDER),
        (run_of(0), batch(3), OUT_OF_ORDER),
        (run_of(500), batch(502), ACCEPT),
        # any of the last five again
        (SIX, batch(10, 2), Duplicate(150, 151, 5)),
        (SIX, batch(8, 2), Duplicate(140, 141, 4)),
        (SIX, batch(6, 2), Duplicate(130, 131, 3)),
        (SIX, batch(4, 2), Duplicate(120, 121, 2)),
        (SIX, batch(2, 2), Duplicate(110, 111, 1)),
        # from before the window, and known to be written
        (SIX, batch(0, 2), OLD_DUPLICATE),
        (SIX, batch(0, 1), OLD_DUPLICATE),
        (SIX, batch(1, 1), OLD_DUPLICATE),
        # overlaps that no correct producer sends
        (SIX, batch(0, 3), OUT_OF_ORDER),
        (SIX, batch(10, 1), OUT_OF_ORDER),
        (SIX, batch(10, 3), OUT_OF_ORDER),
        (SIX, batch(2, 4), OUT_OF_ORDER),
        # from before the window, and never seen: a success would lose it
        (run_of(500), batch(498, 2), OUT_OF_ORDER),
        (run_of(500, 502, 504, 506, 508, 510), batch(500, 2), OLD_DUPLICATE),
        (run_of(500, 502, 504, 506, 508, 510), batch(498, 2), OUT_OF_ORDER),
        (SIX, batch(MAX_SEQUENCE, 1), OUT_OF_ORDER),
        # 2^31-1 is followed by 0
        (run_of(MAX_SEQUENCE - 1), batch(0), ACCEPT),
        (run_of(MAX_SEQUENCE - 1), batch(MAX_SEQUENCE), OUT_OF_ORDER),
        (WRAPPING, batch(8), ACCEPT),
        (WRAPPING, batch(MAX_SEQUENCE - 1, 2), Duplicate(110, 111, 1)),
        (WRAPPING, batch(MAX_SEQUENCE - 3, 2), OLD_DUPLICATE),
        (WRAPPING, batch(MAX_SEQUENCE - 5, 2), OUT_OF_ORDER),
        (OVER_THE_EDGE, batch(3), ACCEPT),
        (OVER_THE_EDGE, batch(MAX_SEQUENCE, 2), Duplicate(110, 111, 1)),
        # epochs
        (run_of(0, epoch=3), batch(2, epoch=2), OLD_EPOCH),
        (run_of(0, epoch=3), batch(0, 2, epoch=2), OLD_EPOCH),
        (run_of(0, epoch=3), batch(0, 2, epoch=4), ACCEPT),
        (run_of(0, epoch=3), batch(2, 2, epoch=4), OUT_OF_ORDER),
        ([*SIX, batch(0, 2, epoch=1)], batch(10, 2, epoch=1), OUT_OF_ORDER),
        ([*SIX, batch(0, 2, epoch=1)], batch(MAX_SEQUENCE - 1, 2, epoch=1), OUT_OF_ORDER),
        ([*SIX, batch(0, 2, epoch=1)], batch(2, epoch=1), ACCEPT),
        # another producer is another matter
        (SIX, batch(7, producer_id=PID + 1), ACCEPT),
    ],
)
def test_sequence_window(written, sent, expected):
    """docs/rules.md, rule 28: a wrong error code here makes clients write twice."""
    assert verdict(state_after(*written), sent) == expected


def test_check_changes_nothing():
    state = state_after(*SIX)
    before = state.snapshot()
    for sent in (batch(12), batch(13), batch(10, 2), batch(0, 2), batch(0, epoch=5)):
        verdict(state, sent)
    assert state.snapshot() == before


def test_a_leap_in_the_log_begins_a_new_window():
    """A leader that forgot the producer accepted it; what was before is no longer vouched for."""
    state = state_after(*SIX, batch(50, 2, offset=200))
    assert verdict(state, batch(52)) is ACCEPT
    assert verdict(state, batch(50, 2)) == Duplicate(200, 201, 77)
    assert verdict(state, batch(10, 2)) is OUT_OF_ORDER
    assert verdict(state, batch(0, 2)) is OUT_OF_ORDER


def test_batches_without_a_producer_id_teach_nothing():
    state = state_after(check_batch(build_batch([(0, None, None, [])])))
    assert len(state) == 0
    assert state.truncate(0)


# Against a simple reference


class Reference:
    """All batches ever written with the current epoch, in full."""

    def __init__(self) -> None:
        self.epoch: int | None = None
        self.vouched: list[tuple[int, int, Duplicate]] = []  # base sequence, count, where
        self.window: list[tuple[int, int, Duplicate]] = []

    def verdict(self, sequence: int, count: int, epoch: int):
        if self.epoch is None:
            return ACCEPT
        if epoch < self.epoch:
            return OLD_EPOCH
        if epoch > self.epoch:
            return ACCEPT if sequence == 0 else OUT_OF_ORDER
        last_base, last_count, _ = self.window[-1]
        if sequence == (last_base + last_count) % 2**31:
            return ACCEPT
        for base, written, where in self.window:
            if (base, written) == (sequence, count):
                return where
        older = {(base + i) % 2**31 for base, written, _ in self.vouched for i in range(written)}
        if all((sequence + i) % 2**31 in older for i in range(count)):
            return OLD_DUPLICATE
        return OUT_OF_ORDER

    def write(self, sequence: int, count: int, epoch: int, where: Duplicate) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            self.vouched, self.window = [], []
        self.window.append((sequence, count, where))
        if len(self.window) > 5:
            self.vouched.append(self.window.pop(0))


sends = st.tuples(
    st.just("send"),
    st.integers(0, 1),  # producer
    st.sampled_from([0] * 12 + [1, -1]),  # epoch, relative to the producer's
    st.sampled_from([0] * 9 + [-1, 1, 4, -9]) | st.integers(-25, 4),  # sequence, to the next one
    st.integers(1, 4),  # records
)
retries = st.tuples(st.just("retry"), st.integers(0, 1), st.integers(1, 9))
steps = st.lists(
    st.sampled_from([sends] * 14 + [retries] * 5 + [st.just(("restart",))]).flatmap(lambda s: s),
    min_size=30,
    max_size=80,
)


@settings(max_examples=200)
@given(steps, st.integers(0, 30) | st.integers(MAX_SEQUENCE - 30, MAX_SEQUENCE))
def test_the_window_behaves_like_a_full_history(steps, first_sequence):
    state = ProducerStateManager()
    references = [Reference(), Reference()]
    sent: list[list[tuple[int, int, int]]] = [[], []]
    end_offset = 0
    for step in steps:
        if step[0] == "restart":
            data, state = state.snapshot(), ProducerStateManager()
            state.load(data, end_offset, NOW)
            for reference in references:
                reference.vouched = []  # a snapshot has the window only
            continue
        producer = step[1]
        reference = references[producer]
        if step[0] == "retry":
            if len(sent[producer]) < step[2]:
                continue
            sequence, count, epoch = sent[producer][-step[2]]
        else:
            _, _, epoch_delta, sequence_delta, count = step
            epoch = max(0, (reference.epoch or 0) + epoch_delta)
            if reference.window and epoch == reference.epoch:
                base, written, _ = reference.window[-1]
                sequence = (base + written + sequence_delta) % 2**31
            else:
                sequence = max(0, sequence_delta) if reference.window else first_sequence
        header = batch(sequence, count, epoch=epoch, producer_id=producer, offset=end_offset)
        expected = reference.verdict(sequence, count, epoch)
        assert verdict(state, header) == expected
        if expected is ACCEPT:
            state.update(header, NOW)
            where = Duplicate(end_offset, end_offset + count - 1, 77)
            reference.write(sequence, count, epoch, where)
            sent[producer].append((sequence, count, epoch))
            end_offset += count


# Forgetting


def test_a_producer_is_forgotten_after_its_time():
    state = state_after(batch(0), batch(0, producer_id=2))
    state.update(batch(1, producer_id=2), NOW + 5)
    assert state.expire(NOW + DAY - 1) == 0
    assert verdict(state, batch(9), NOW + DAY - 1) is OUT_OF_ORDER
    # The answer does not depend on when the periodic task ran.
    assert verdict(state, batch(9), NOW + DAY) is ACCEPT
    assert state.expire(NOW + DAY) == 1
    assert len(state) == 1
    assert verdict(state, batch(9, epoch=0), NOW + DAY) is ACCEPT
    assert verdict(state, batch(9, producer_id=2), NOW + DAY) is OUT_OF_ORDER


def test_a_forgotten_producer_begins_anew():
    state = state_after(*run_of(0, 2, epoch=4))
    later = NOW + DAY
    comeback = batch(90, 2, epoch=2, offset=300)
    assert verdict(state, comeback, later) is ACCEPT
    state.update(comeback, later)
    assert verdict(state, comeback, later) == Duplicate(300, 301, 77)
    assert verdict(state, batch(92, epoch=2), later) is ACCEPT


def test_expiry_is_configurable():
    state = ProducerStateManager(expiration_ms=10)
    state.update(batch(0), NOW)
    assert state.expire(NOW + 9) == 0
    assert state.expire(NOW + 10) == 1


def test_old_record_timestamps_do_not_make_a_producer_old():
    state = state_after(batch(0, timestamp=1))
    assert state.expire(NOW + 1) == 0


def test_an_open_transaction_does_not_expire():
    state = state_after(batch(0, transactional=True, offset=3))
    assert state.expire(NOW + 10 * DAY) == 0
    assert state.last_stable_offset(100) == 3
    end_transaction(state, 4)
    assert state.expire(NOW + 10 * DAY) == 1


def test_truncation_keeps_what_the_cut_does_not_touch():
    state = state_after(batch(0, 3, offset=10))
    assert state.truncate(13)
    assert verdict(state, batch(0, 3)) == Duplicate(10, 12, 77)
    assert not state.truncate(12)
    assert len(state) == 0
    assert verdict(state, batch(44)) is ACCEPT


def test_truncation_of_a_marker_is_noticed():
    """The data survives the cut, the end of its transaction does not."""
    state = state_after(batch(0, transactional=True, offset=5))
    before_marker = state.snapshot()
    end_transaction(state, 6)
    for restarted in (False, True):
        if restarted:
            data, state = state.snapshot(), ProducerStateManager()
            state.load(data, 7, NOW)
            assert state.last_stable_offset(7) == 7
        assert state.truncate(7)
        if restarted:
            assert not state.truncate(6)
    state.load(before_marker, 6, NOW)
    assert state.last_stable_offset(6) == 5


# Transactions


def test_a_transaction_is_transactional_to_its_end():
    state = state_after(batch(0, transactional=True))
    assert verdict(state, batch(1, transactional=True)) is ACCEPT
    assert verdict(state, batch(1)) is ErrorCode.INVALID_TXN_STATE
    end_transaction(state, 1)
    assert verdict(state, batch(1)) is ACCEPT


FENCED = ErrorCode.TRANSACTION_COORDINATOR_FENCED
APPEND, IS_THERE = True, False
OPEN = [batch(0, epoch=3, transactional=True)]


def verdict_on_marker(
    state: ProducerStateManager,
    epoch: int,
    coordinator: int,
    version: int,
    *,
    producer_id: int = PID,
    committed: bool = True,
):
    """Whether it has to be appended, or the error code that `check_marker` raises."""
    try:
        end = EndTxnMarker(committed, coordinator)
        return state.check_marker(producer_id, epoch, end, version)
    except KafkaError as error:
        return error.code


@pytest.mark.parametrize(
    ("epoch", "coordinator", "version", "of_open", "of_ended"),
    [
        # The producer has epoch 3; the last marker came from a coordinator of epoch 9.
        (2, 9, 1, OLD_EPOCH, OLD_EPOCH),
        (2, 9, 2, OLD_EPOCH, OLD_EPOCH),
        (3, 9, 0, APPEND, IS_THERE),
        (3, 9, 1, APPEND, IS_THERE),
        (3, 10, 1, APPEND, APPEND),  # who is deposed hears of it
        (4, 9, 1, APPEND, APPEND),  # fences, also where nothing was written
        # What is open has the marker's epoch: it's the next transaction (KAFKA-19999).
        (3, 9, 2, OLD_EPOCH, IS_THERE),
        (3, 10, 2, OLD_EPOCH, APPEND),
        (4, 9, 2, APPEND, APPEND),
        (3, 8, 1, FENCED, FENCED),
        (4, 8, 2, FENCED, FENCED),
        (2, 8, 2, OLD_EPOCH, OLD_EPOCH),
    ],
)
def test_marker_again(epoch, coordinator, version, of_open, of_ended):
    """Markers are fenced by epoch and coordinator, and a retry isn't written twice."""
    ended = state_after(*OPEN)
    end_transaction(ended, 1, epoch=3, coordinator=9)
    opened = ProducerStateManager()
    opened.load(ended.snapshot(), 2, NOW)
    opened.update(batch(1, epoch=3, offset=2, transactional=True), NOW)
    for committed in (True, False):
        for state, expected in ((opened, of_open), (ended, of_ended)):
            found = verdict_on_marker(state, epoch, coordinator, version, committed=committed)
            assert found is expected
    assert verdict_on_marker(ended, 0, 0, version, producer_id=5) is APPEND


def test_the_last_epoch_is_ended_by_itself():
    """As in Kafka: no marker can have a later one, and what is open must not stay so."""
    state = state_after(batch(0, epoch=2**15 - 1, transactional=True))
    for version in (0, 1, 2):
        assert verdict_on_marker(state, 2**15 - 1, 0, version) is APPEND
    end_transaction(state, 1, epoch=2**15 - 1)
    assert verdict_on_marker(state, 2**15 - 1, 0, 2) is IS_THERE


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_that_is_there_changes_nothing(committed):
    """So a coordinator may be told that it is, whatever became of the answer to the first one."""
    state = state_after(*OPEN)
    end_transaction(state, 1, epoch=3, coordinator=9)
    before = state.snapshot()
    assert verdict_on_marker(state, 3, 9, 1, committed=committed) is IS_THERE
    assert end_transaction(state, 2, epoch=3, coordinator=9, committed=committed) is None
    assert state.snapshot() == before
    assert state.last_stable_offset(3) == 0  # the first one isn't committed yet


def test_of_a_coordinators_own_batch_only_the_epoch_counts():
    """Offsets in a transaction have no sequence: the coordinator knows what it writes."""
    own = batch(-1, 2, epoch=3, transactional=True)
    state = state_after(*OPEN)
    assert verdict(state, own) is ACCEPT
    state.update(batch(-1, 2, epoch=3, transactional=True, offset=1), NOW)
    assert verdict(state, own) is ACCEPT
    assert verdict(state, batch(-1, epoch=2, transactional=True)) is OLD_EPOCH
    assert verdict(state, batch(-1, epoch=4, transactional=True)) is ACCEPT
    assert verdict(state, batch(-1, epoch=3)) is ErrorCode.INVALID_TXN_STATE
    assert verdict(state, batch(1, epoch=3, transactional=True)) is ACCEPT
    state.update(batch(-1, epoch=4, transactional=True, offset=3), NOW)
    assert verdict(state, own) is OLD_EPOCH
    assert state.has_open(PID, 4)
    again = ProducerStateManager()
    again.load(state.snapshot(), 4, NOW)
    assert again.snapshot() == state.snapshot()
    assert verdict(again, batch(-1, epoch=4, transactional=True)) is ACCEPT


def test_what_is_known_of_a_producer():
    state = state_after(batch(7, 3, epoch=2, offset=20, transactional=True, timestamp=99))
    ((producer_id, found),) = state.active()
    assert (producer_id, found.epoch, found.last_sequence, found.last_timestamp) == (PID, 2, 9, 99)
    assert (found.coordinator_epoch, found.txn_first_offset) == (-1, 20)
    assert state.has_open(PID, 2)
    assert not state.has_open(PID, 3)
    assert not state.has_open(PID + 1, 2)
    end_transaction(state, 23, epoch=3, coordinator=4)
    assert (found.epoch, found.last_sequence, found.coordinator_epoch) == (3, -1, 4)
    assert found.txn_first_offset == -1
    assert not state.has_open(PID, 2)
    assert state.epoch_of(PID, NOW) == 3
    assert state.epoch_of(PID, NOW + DAY) is None
    assert state.epoch_of(PID + 1, NOW) is None


def test_a_marker_with_a_higher_epoch_fences_the_producer():
    """KIP-890: the epoch rises with each transaction; the next one begins with sequence 0."""
    state = state_after(batch(0, 2, epoch=3, transactional=True))
    end_transaction(state, 2, epoch=4)
    assert verdict(state, batch(2, epoch=3, transactional=True)) is OLD_EPOCH
    assert verdict(state, batch(2, epoch=4, transactional=True)) is OUT_OF_ORDER
    assert verdict(state, batch(0, epoch=4, transactional=True)) is ACCEPT


def test_a_marker_without_data_ends_nothing():
    state = ProducerStateManager()
    assert end_transaction(state, 0, committed=False) is None
    assert state.update(emptied(marker(1)[0]), NOW) is None
    assert state.last_stable_offset(2) == 2


def emptied(header: BatchHeader) -> BatchHeader:
    """As the cleaner leaves a marker whose transaction is gone."""
    header.records_count = 0
    return header


def test_an_emptied_marker_still_fences():
    state = state_after(batch(0, epoch=3, transactional=True))
    end_transaction(state, 1, epoch=3, coordinator=9)
    state.update(emptied(marker(2, epoch=4)[0]), NOW)
    assert verdict(state, batch(1, epoch=3, transactional=True)) is OLD_EPOCH
    assert verdict(state, batch(0, epoch=4, transactional=True)) is ACCEPT
    unknown, _ = marker(3, epoch=9)  # of a type that nobody knows yet
    state.update(unknown, NOW)
    assert verdict(state, batch(0, epoch=4, transactional=True)) is ACCEPT


def test_the_last_stable_offset_waits_for_the_marker_to_be_replicated():
    state = state_after(batch(0, transactional=True, offset=10))
    assert state.last_stable_offset(8) == 8
    assert state.last_stable_offset(11) == 10
    end_transaction(state, 11)
    assert state.last_stable_offset(11) == 10
    state.advance_high_watermark(11)
    assert state.last_stable_offset(11) == 10
    state.advance_high_watermark(12)
    assert state.last_stable_offset(12) == 12


def test_the_last_stable_offset_is_not_below_the_log_start():
    state = state_after(batch(0, transactional=True, offset=10))
    assert state.last_stable_offset(50) == 10
    state.advance_log_start(30)
    assert state.last_stable_offset(50) == 30
    assert state.last_stable_offset(20) == 20


def test_where_nobody_ends_transactions_no_batch_begins_one():
    left = state_after(batch(0, transactional=True, offset=10)).snapshot()
    state = ProducerStateManager(transactions=False)
    state.load(left, 11, NOW)
    assert state.last_stable_offset(50) == 50
    sent = batch(1, transactional=True, offset=11)
    assert state.check(sent, NOW) is None
    state.update(sent, NOW)
    assert state.last_stable_offset(50) == 50
    assert state.check(batch(2), NOW) is None


def test_a_marker_below_the_watermark_holds_nothing_back_when_it_is_read_again():
    state = ProducerStateManager()
    state.advance_high_watermark(20)
    state.update(batch(0, transactional=True, offset=10), NOW)
    end_transaction(state, 11)
    assert state.last_stable_offset(20) == 20
    state.truncate(11)  # an unclean leader has another history, in which nothing is committed yet
    state.update(batch(0, transactional=True, offset=10), NOW)
    end_transaction(state, 11)
    assert state.last_stable_offset(11) == 10


def test_a_snapshot_tells_no_transactions_that_have_ended():
    """So one beyond the high watermark is of no use where there may be any."""
    state = state_after(batch(0, offset=3))
    assert state.snapshot_limit is None
    end_transaction(state, 4)
    state.advance_high_watermark(2)
    again = ProducerStateManager()
    again.advance_high_watermark(2)
    again.load(state.snapshot(), 5, NOW)
    assert again.snapshot_limit == state.snapshot_limit == 2
    again.clear()
    assert len(again) == 0
    assert again.snapshot_limit is None


events = st.lists(
    st.tuples(
        st.sampled_from(["data", "data", "commit", "abort", "restart", "replicate"]),
        st.integers(0, 3),
        st.integers(1, 3),
    ),
    min_size=10,
    max_size=40,
)


@settings(max_examples=200)
@given(events)
def test_last_stable_offset_and_ended_transactions_match_a_scan_of_the_log(events):
    state = ProducerStateManager()
    transactions: list[dict] = []  # first, last (None: open), committed, producer
    sequences = [0] * 4
    end_offset = high_watermark = stable = 0
    for kind, producer, count in events:
        open_one = next(
            (t for t in transactions if t["producer"] == producer and t["last"] is None), None
        )
        if kind == "data":
            state.update(
                batch(
                    sequences[producer],
                    count,
                    producer_id=producer,
                    offset=end_offset,
                    transactional=True,
                ),
                NOW,
            )
            if open_one is None:
                transactions.append({"producer": producer, "first": end_offset, "last": None})
            sequences[producer] += count
            end_offset += count
        elif kind in ("commit", "abort"):
            completed = end_transaction(
                state, end_offset, producer_id=producer, committed=kind == "commit"
            )
            assert (completed is None) == (open_one is None)
            if open_one is not None:
                open_one.update(last=end_offset, committed=kind == "commit")
                still_open = [t["first"] for t in transactions if t["last"] is None]
                assert completed == (
                    producer,
                    open_one["first"],
                    end_offset,
                    min([*still_open, end_offset + 1]),
                    kind == "commit",
                )
            end_offset += 1
        elif kind == "replicate":
            high_watermark = min(end_offset, high_watermark + count)
            state.advance_high_watermark(high_watermark)
        else:
            data, state = state.snapshot(), ProducerStateManager()
            state.load(data, end_offset, NOW)
            high_watermark = end_offset  # else the log is read, see `snapshot_limit`
            state.advance_high_watermark(high_watermark)
        unstable = [
            t["first"] for t in transactions if t["last"] is None or t["last"] >= high_watermark
        ]
        stable = min([*unstable, high_watermark])
        assert state.last_stable_offset(high_watermark) == stable


# Snapshots


def busy_state() -> ProducerStateManager:
    state = state_after(
        *SIX,
        *WRAPPING,
        batch(3, producer_id=5, epoch=9, offset=7, transactional=True),
    )
    end_transaction(state, 300, producer_id=6, epoch=2, coordinator=4)
    return state


def test_snapshot_round_trip():
    state = busy_state()
    again = ProducerStateManager()
    again.load(state.snapshot(), 301, NOW)
    assert again.snapshot() == state.snapshot()
    for sent in (*WRAPPING, batch(8), batch(9), batch(0, producer_id=6, epoch=1)):
        if sent is WRAPPING[0]:
            continue  # out of the window, and a snapshot does not say what was there
        assert verdict(again, sent) == verdict(state, sent)
    assert again.last_stable_offset(400) == state.last_stable_offset(400) == 7
    assert len(again) == 3


def test_snapshot_bytes_are_kafkas():
    """Version 1 of ProducerStateManager's snapshot schema, field by field."""
    state = state_after(batch(4, 3, epoch=2, offset=20, transactional=True, timestamp=99))
    entries = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", PID, 2, 6, 22, 2, 99, -1, 20)
    assert state.snapshot() == struct.pack(">hI", 1, crc32c(entries)) + entries


def test_a_snapshot_of_kafka_has_the_last_batch_only():
    entries = struct.pack(">i", 2)
    entries += struct.pack(">qhiqiqiq", PID, 2, 6, 22, 2, 99, 3, -1)
    entries += struct.pack(">qhiqiqiq", PID + 1, 0, -1, -1, 0, 50, 7, -1)
    state = ProducerStateManager()
    state.load(struct.pack(">hI", 1, crc32c(entries)) + entries, 30, NOW)
    assert verdict(state, batch(4, 3, epoch=2)) == Duplicate(20, 22, 99)
    assert verdict(state, batch(7, epoch=2)) is ACCEPT
    assert verdict(state, batch(3, epoch=2)) is OUT_OF_ORDER
    assert verdict(state, batch(0, producer_id=PID + 1)) is ACCEPT
    assert verdict_on_marker(state, 2, 2, 1) is FENCED


@given(st.data())
def test_a_damaged_snapshot_is_refused_and_changes_nothing(data):
    good = busy_state().snapshot()
    state = state_after(batch(0))
    before = state.snapshot()
    damaged = bytearray(good)
    if data.draw(st.booleans()):
        damaged[data.draw(st.integers(0, len(good) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del damaged[data.draw(st.integers(0, len(good) - 1)) :]
    with pytest.raises(DecodeError):
        state.load(bytes(damaged), 301, NOW)
    assert state.snapshot() == before


@given(st.binary(max_size=200), st.integers(-2, 5))
def test_random_snapshots_raise_decode_error_only(data, count):
    body = struct.pack(">i", count) + data
    state = ProducerStateManager()
    for snapshot in (data, struct.pack(">hI", 1, crc32c(body)) + body):
        try:
            state.load(snapshot, 0, NOW)
        except DecodeError:
            assert len(state) == 0
