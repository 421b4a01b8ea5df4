"""The records of `__transaction_state`: Kafka's bytes, and what can't be one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.core.coordination import Loaded, Write
from kraftpy.core.transactions import Transaction, TransactionCodec, TransactionState
from kraftpy.core.transactions.records import (
    TransactionRecord,
    decode_record,
    encode_record,
)
from kraftpy.core.transactions.states import EPOCH_MAX
from kraftpy.protocol.codec import decode_versioned, encode_versioned
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.messages import TransactionLogValue

from .driver import TIMEOUT_MS, Driver, unused

INT16 = st.integers(0, 32767)
INT64 = st.integers(-1, 2**63 - 1)
PARTITIONS = st.frozensets(
    st.tuples(st.sampled_from(["a", "b.c", "é"]), st.integers(0, 2**31 - 1)), max_size=5
)
IDLE = [TransactionState.EMPTY, TransactionState.COMPLETE_ABORT, TransactionState.COMPLETE_COMMIT]
BUSY = [TransactionState.ONGOING, TransactionState.PREPARE_ABORT, TransactionState.PREPARE_COMMIT]


@st.composite
def transactions(draw: st.DrawFn) -> Transaction:
    state = draw(st.sampled_from(IDLE + BUSY))
    return Transaction(
        state=state,
        producer_id=draw(st.integers(0, 2**63 - 1)),
        producer_epoch=draw(INT16),
        last_producer_epoch=draw(st.integers(-1, 32767)),
        previous_producer_id=draw(INT64),
        next_producer_id=draw(INT64),
        timeout_ms=draw(st.integers(1, 2**31 - 1)),
        partitions=draw(PARTITIONS) if state in BUSY else frozenset(),
        start_ms=draw(INT64),
        update_ms=draw(INT64),
        client_version=draw(st.sampled_from([0, 2])),
    )


@given(st.text(max_size=20), st.none() | transactions())
def test_there_and_back(transactional_id: str, transaction: Transaction | None) -> None:
    record = TransactionRecord(transactional_id, transaction)
    assert decode_record(*encode_record(record)) == record


@given(st.text(max_size=20), transactions())
def test_bytes_are_the_codecs(transactional_id: str, transaction: Transaction) -> None:
    """They are put together by hand."""
    key, value = encode_record(TransactionRecord(transactional_id, transaction))
    for name, data in (("TransactionLogKey", key), ("TransactionLogValue", value)):
        assert data is not None
        assert encode_versioned(name, *decode_versioned(name, data)) == data


def test_bytes_of_many_partitions_are_the_codecs() -> None:
    partitions = frozenset((topic * 70, number) for topic in "abc" for number in range(300))
    for state in BUSY:
        transaction = Transaction(state, 5, 3, 2, 4, 6, 1000, partitions, 7, 9, 2)
        _, value = encode_record(TransactionRecord("t", transaction))
        assert value is not None
        decoded = decode_versioned("TransactionLogValue", value)
        assert encode_versioned("TransactionLogValue", *decoded) == value


def test_a_transaction_that_fits_into_a_batch_can_end() -> None:
    """Whatever its end adds: an epoch, a version, and an id for one that is exhausted."""
    partitions = [("a", number) for number in range(101)]
    for epoch in (0, EPOCH_MAX):
        for version in (0, 2):
            for act in ("commit", "abort", "fence", "time out"):
                driver = Driver()
                producer = driver.opened(*partitions, epoch=epoch)
                before = len(driver.batches[-1])
                driver.batches.clear()
                if act == "fence":
                    driver.init()
                elif act == "time out":
                    driver.advance(TIMEOUT_MS)
                else:
                    driver.end(producer, commit=act == "commit", version=version)
                (batch,) = driver.batches
                assert len(batch) <= before, (epoch, version, act)


def test_bytes_are_kafkas() -> None:
    """By hand, from the schema of Kafka 4.4's jar."""
    transaction = Transaction(
        TransactionState.ONGOING, 5, 3, 2, 4, -1, 1000, frozenset({("b", 1), ("a", 2)}), 7, 9, 2
    )
    key, value = encode_record(TransactionRecord("t", transaction))
    assert key.hex(" ") == "00 00 00 01 74"
    assert value is not None
    assert value.hex(" ") == (
        "00 01 "  # version
        "00 00 00 00 00 00 00 05 00 03 00 00 03 e8 01 "  # id, epoch, timeout, Ongoing
        "03 02 61 02 00 00 00 02 00 02 62 02 00 00 00 01 00 "  # a: 2; b: 1
        "00 00 00 00 00 00 00 09 00 00 00 00 00 00 00 07 "  # last update, start
        "03 "  # tags
        "00 08 00 00 00 00 00 00 00 04 "  # previous id
        "02 02 00 02 "  # client's version
        "90 4e 02 00 02"  # our own: last epoch
    )


def test_an_empty_one_has_no_partitions_at_all() -> None:
    driver = Driver()
    driver.init()
    _, value = encode_record(driver.log[0])
    assert value is not None
    assert value[2 + 8 + 2 + 4 + 1] == 0, "null"


def test_version_0_of_older_kafkas() -> None:
    old = TransactionLogValue(
        producer_id=5,
        producer_epoch=3,
        transaction_timeout_ms=1000,
        transaction_status=TransactionState.COMPLETE_COMMIT,
        transaction_partitions=[],
        transaction_last_update_timestamp_ms=9,
        transaction_start_timestamp_ms=7,
    )
    key, _ = encode_record(TransactionRecord("t", None))
    record = decode_record(key, encode_versioned("TransactionLogValue", 0, old))
    assert record is not None
    assert record.transaction == Transaction(
        TransactionState.COMPLETE_COMMIT, 5, 3, -1, -1, -1, 1000, frozenset(), 7, 9, 0
    )


def test_other_kinds_are_passed_over() -> None:
    assert decode_record(b"\0\1what", b"ever") is None


@pytest.mark.parametrize(
    "change",
    [
        {"transaction_status": 6},
        {"transaction_status": 99},
        {"transaction_status": -1},
        {"producer_id": -1},
        {"producer_epoch": -1},
        {"transaction_status": 0},
        {"transaction_partitions": [TransactionLogValue.PartitionsSchema("a", [-1])]},
    ],
)
def test_what_cant_have_been_is_refused(change: dict[str, object]) -> None:
    value = TransactionLogValue(
        producer_id=1,
        producer_epoch=0,
        transaction_timeout_ms=1000,
        transaction_status=TransactionState.ONGOING,
        transaction_partitions=[TransactionLogValue.PartitionsSchema("a", [0])],
    )
    for name, wrong in change.items():
        setattr(value, name, wrong)
    key, _ = encode_record(TransactionRecord("t", None))
    with pytest.raises(DecodeError):
        decode_record(key, encode_versioned("TransactionLogValue", 1, value))


def test_loading_skips_what_it_cant_read() -> None:
    driver = Driver()
    driver.opened(version=2)
    bad = driver.log[0]
    assert bad.transaction is not None
    dead = TransactionRecord("t", bad.transaction._replace(state=TransactionState.DEAD))
    write = Write([dead], ("t",), unused, unused)
    driver.batches.append(TransactionCodec().encode(write, 0))
    loaded = Loaded()
    other = Driver()
    TransactionCodec().replay(b"".join(driver.batches), other.machine, loaded)
    assert (loaded.records, loaded.skipped) == (2, 1)
    assert "is dead" in loaded.problem
    assert other.machine.find("t") == driver.machine.find("t")
