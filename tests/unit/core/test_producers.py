"""The sequence window and the snapshot of one partition's producers."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from kraftpy.core.producers import Duplicate, ProducerStateManager
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.records import build_batch, check_batch
from tests.unit.core.producer_batches import (
    ACCEPT,
    DAY,
    FENCED,
    MAX_SEQUENCE,
    NOW,
    OLD_DUPLICATE,
    OLD_EPOCH,
    OUT_OF_ORDER,
    PID,
    batch,
    end_transaction,
    run_of,
    state_after,
    verdict,
    verdict_on_marker,
)

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


def test_truncation_keeps_what_the_cut_does_not_touch():
    state = state_after(batch(0, 3, offset=10))
    assert state.truncate(13)
    assert verdict(state, batch(0, 3)) == Duplicate(10, 12, 77)
    assert not state.truncate(12)
    assert len(state) == 0
    assert verdict(state, batch(44)) is ACCEPT


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
