"""Who may do what with a transactional id, as tables."""

from __future__ import annotations

import pytest

from kraftpy.core.transactions import TransactionState as S
from kraftpy.core.transactions.states import BY_LABEL, EPOCH_MAX, FOLLOWS, VERSION_0, VERSION_2
from kraftpy.protocol.errors import ErrorCode as E

from .driver import P0, P1, P2, TIMEOUT_MS, Driver, labels

IDLE = {S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT}


def test_states() -> None:
    assert {label: state.value for label, state in BY_LABEL.items()} == {
        "Empty": 0,
        "Ongoing": 1,
        "PrepareCommit": 2,
        "PrepareAbort": 3,
        "CompleteCommit": 4,
        "CompleteAbort": 5,
        "Dead": 6,
    }
    assert {state: set(FOLLOWS[state, VERSION_2]) for state in S} == {
        S.EMPTY: IDLE,
        S.ONGOING: {*IDLE, S.ONGOING},
        S.PREPARE_COMMIT: {S.ONGOING},
        S.PREPARE_ABORT: {*IDLE, S.ONGOING},
        S.COMPLETE_COMMIT: {S.PREPARE_COMMIT},
        S.COMPLETE_ABORT: {S.PREPARE_ABORT},
        S.DEAD: IDLE,
    }
    assert FOLLOWS[S.PREPARE_ABORT, VERSION_0] == {S.ONGOING}


# -- InitProducerId


def test_a_new_id_begins_with_epoch_0_whatever_is_expected() -> None:
    driver = Driver()
    assert driver.producer(driver.init(key="one")) == (1000, 0)
    assert driver.producer(driver.init((7, 3), key="two")) == (1001, 0)
    assert labels(driver, "one") == ["Empty"]


def test_who_comes_new_gets_the_next_epoch_and_the_former_owner_is_fenced() -> None:
    driver = Driver()
    former = driver.producer(driver.init())
    assert driver.producer(driver.init()) == (1000, 1)
    assert driver.error(driver.init(former)) is E.PRODUCER_FENCED
    assert driver.error(driver.add(former, P0)) is E.PRODUCER_FENCED
    assert driver.error(driver.end(former)) is E.PRODUCER_FENCED
    assert driver.state() == "Empty"


def test_who_expects_its_epoch_gets_the_next_and_may_ask_again() -> None:
    driver = Driver()
    producer = driver.producer(driver.init())
    assert driver.producer(driver.init(producer)) == (1000, 1)
    driver.move()
    assert driver.producer(driver.init(producer)) == (1000, 1), "the log knows the last epoch"
    assert driver.error(driver.init((1000, 5))) is E.PRODUCER_FENCED
    assert driver.error(driver.init((999, 1))) is E.PRODUCER_FENCED
    assert driver.producer(driver.init((1000, 1))) == (1000, 2)


def test_a_retry_with_another_timeout_is_kept() -> None:
    driver = Driver()
    producer = driver.producer(driver.init())
    driver.init(producer)
    written = len(driver.log)
    assert driver.producer(driver.init(producer)) == (1000, 1)
    assert len(driver.log) == written
    assert driver.producer(driver.init(producer, timeout_ms=1)) == (1000, 1)
    last = driver.last()
    assert last is not None
    assert last.timeout_ms == 1


@pytest.mark.parametrize("expects", [False, True])
def test_an_exhausted_producer_id_is_followed_by_another(expects: bool) -> None:
    driver = Driver()
    driver.init()
    producer = driver.raise_epoch(EPOCH_MAX)
    assert driver.producer(driver.init(producer if expects else None)) == (1001, 0)
    driver.move()
    token = driver.init(producer)
    if expects:
        assert driver.producer(token) == (1001, 0), "a retry names the id before"
    else:
        assert driver.error(token) is E.PRODUCER_FENCED


def test_without_an_id_at_hand_clients_try_again() -> None:
    driver = Driver()
    driver.init()
    producer = driver.raise_epoch(EPOCH_MAX)
    driver.next_producer_id = None
    assert driver.error(driver.init(key="new")) is E.COORDINATOR_LOAD_IN_PROGRESS
    assert driver.error(driver.init()) is E.COORDINATOR_LOAD_IN_PROGRESS
    driver.add(producer, P0)
    assert driver.error(driver.init()) is E.COORDINATOR_LOAD_IN_PROGRESS
    assert driver.error(driver.end(producer, version=2)) is E.COORDINATOR_LOAD_IN_PROGRESS
    assert driver.state() == "Ongoing"
    assert driver.error(driver.end(producer, version=0)) is E.NONE


@pytest.mark.parametrize("version", [0, 2])
def test_an_open_transaction_is_aborted_first_with_an_epoch_that_nobody_gets(version: int) -> None:
    driver = Driver()
    driver.opened(P0, P1, version=version)
    token = driver.init()
    assert token not in driver.replies
    (markers,) = driver.markers
    assert (markers.producer_id, markers.producer_epoch, markers.is_commit) == (1000, 1, False)
    assert markers.partitions == {P0, P1}
    assert markers.transaction_version == version
    driver.write_markers()
    assert driver.producer(token) == (1000, 2)
    assert labels(driver) == ["Empty", "Ongoing", "PrepareAbort", "CompleteAbort", "Empty"]


def test_each_newcomer_that_finds_it_open_gets_an_epoch_of_its_own() -> None:
    driver = Driver()
    driver.opened()
    first, second = driver.init(), driver.init()
    driver.write_markers()
    assert (driver.producer(first), driver.producer(second)) == ((1000, 2), (1000, 3))


def test_the_owner_may_abort_by_asking_and_ask_again() -> None:
    driver = Driver()
    producer = driver.opened()
    first = driver.init(producer)
    again = driver.init(producer)
    driver.write_markers()
    assert driver.producer(first) == driver.producer(again) == (1000, 1), "nobody else had it"


def test_the_answer_to_the_owner_got_lost_with_the_coordinator() -> None:
    driver = Driver()
    producer = driver.opened()
    driver.init(producer)
    driver.move()
    driver.write_markers()
    assert driver.producer(driver.init(producer)) == (1000, 1)
    owner = driver.opened()
    driver.init()
    driver.move()
    driver.write_markers()
    assert driver.error(driver.init(owner)) is E.PRODUCER_FENCED, "somebody else wanted it"


def test_a_zombie_aborts_nothing() -> None:
    """A late InitProducerId of an older epoch; Kafka aborts what the owner has open."""
    driver = Driver()
    zombie = driver.producer(driver.init())
    driver.opened()
    assert driver.error(driver.init(zombie)) is E.PRODUCER_FENCED
    assert driver.state() == "Ongoing"
    assert driver.markers == []


# -- AddPartitionsToTxn


def test_add_partitions() -> None:
    driver = Driver()
    assert driver.error(driver.add((1000, 0), P0)) is E.INVALID_PRODUCER_ID_MAPPING
    producer = driver.producer(driver.init())
    assert driver.error(driver.add((1001, 0), P0)) is E.INVALID_PRODUCER_ID_MAPPING
    assert driver.error(driver.add((1000, 1), P0)) is E.PRODUCER_FENCED
    assert driver.error(driver.add(producer, P0)) is E.NONE
    written = len(driver.log)
    assert driver.error(driver.add(producer, P0)) is E.NONE
    assert len(driver.log) == written, "all are there"
    driver.advance(5)
    assert driver.error(driver.add(producer, P0, P1, version=2)) is E.NONE
    last = driver.last()
    assert last is not None
    assert last.partitions == {P0, P1}
    assert last.client_version == 2
    assert (last.start_ms, last.update_ms) == (driver.now_ms - 5, driver.now_ms)


def test_verify() -> None:
    driver = Driver()
    verify = driver.machine.verify
    assert verify("t", (1000, 0), [P0]) == [E.INVALID_PRODUCER_ID_MAPPING]
    producer = driver.opened(P0)
    assert verify("t", producer, [P0, P1]) == [E.NONE, E.TRANSACTION_ABORTABLE]
    assert verify("t", (1000, 1), [P0, P1]) == [E.PRODUCER_FENCED] * 2
    assert verify("t", (1001, 0), [P0]) == [E.INVALID_PRODUCER_ID_MAPPING]
    driver.end(producer)
    assert verify("t", producer, [P0]) == [E.CONCURRENT_TRANSACTIONS]
    driver.write_markers()
    assert verify("t", producer, [P0]) == [E.TRANSACTION_ABORTABLE]


# -- EndTxn


@pytest.mark.parametrize(
    ("state", "commit", "abort", "same_again", "other_again"),
    [
        ("Ongoing", "PrepareCommit", "PrepareAbort", E.PRODUCER_FENCED, E.PRODUCER_FENCED),
        ("Empty", E.INVALID_TXN_STATE, "CompleteAbort", E.PRODUCER_FENCED, E.PRODUCER_FENCED),
        ("CompleteCommit", E.INVALID_TXN_STATE, "CompleteAbort", E.NONE, E.INVALID_TXN_STATE),
        ("CompleteAbort", E.INVALID_TXN_STATE, "CompleteAbort", E.NONE, E.INVALID_TXN_STATE),
    ],
)
def test_the_end_in_version_2(
    state: str, commit: object, abort: object, same_again: E, other_again: E
) -> None:
    def at_state() -> tuple[Driver, int]:
        driver = Driver()
        producer = driver.producer(driver.init())
        if state == "Empty":
            return driver, 1 if driver.init(producer) else 0
        driver.add(producer, P0, version=2)
        if state == "Ongoing":
            driver.end(producer, version=2)
            driver.write_markers()
            driver.add((1000, 1), P0, version=2)
        else:
            driver.end(producer, commit=state == "CompleteCommit", version=2)
            driver.write_markers()
        assert driver.state() == state
        return driver, 1

    for is_commit, expected in ((True, commit), (False, abort)):
        driver, epoch = at_state()
        token = driver.end((1000, epoch), commit=is_commit, version=2)
        if isinstance(expected, str):
            assert driver.producer(token) == (1000, epoch + 1)
            assert driver.state() == expected
            assert len(driver.markers) == (expected != "CompleteAbort"), "nobody to tell"
        else:
            assert driver.error(token) is expected
    was_commit = state in ("CompleteCommit", "Ongoing", "Empty")
    for is_commit, error in ((was_commit, same_again), (not was_commit, other_again)):
        driver, epoch = at_state()
        token = driver.end((1000, epoch - 1), commit=is_commit, version=2)
        assert driver.error(token) is error
        if error is E.NONE:
            assert driver.producer(token) == (1000, epoch)
        assert driver.state() == state


@pytest.mark.parametrize("committed", [True, False])
def test_the_end_in_version_0(committed: bool) -> None:
    driver = Driver()
    assert driver.error(driver.end((1000, 0))) is E.INVALID_PRODUCER_ID_MAPPING
    producer = driver.producer(driver.init())
    assert driver.error(driver.end(producer, commit=committed)) is E.INVALID_TXN_STATE
    driver.add(producer, P0, P2)
    assert driver.error(driver.end((1000, 1), commit=committed)) is E.PRODUCER_FENCED
    assert driver.error(driver.end(producer, commit=committed)) is E.NONE
    (markers,) = driver.markers
    assert markers.producer_epoch == 0
    driver.write_markers()
    assert driver.error(driver.end(producer, commit=committed)) is E.NONE
    assert driver.error(driver.end(producer, commit=not committed)) is E.INVALID_TXN_STATE
    assert driver.last() == driver.machine.find("t")


# -- epochs at their end


@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("committed", [True, False])
def test_exhausted(moves: bool, committed: bool) -> None:
    """Epoch 32766, a fail-over while the markers are out, and a lost answer."""
    driver = Driver()
    producer = driver.opened(epoch=EPOCH_MAX, version=2)
    assert driver.producer(driver.end(producer, commit=committed, version=2)) == (1001, 0)
    if moves:
        driver.move()
    (markers,) = driver.markers
    assert (markers.producer_id, markers.producer_epoch) == (1000, EPOCH_MAX + 1)
    early = driver.add((1001, 0), P0, version=2)
    assert early not in driver.replies
    driver.write_markers()
    assert driver.error(early) is E.NONE
    driver = Driver()
    producer = driver.opened(epoch=EPOCH_MAX, version=2)
    driver.end(producer, commit=committed, version=2)
    driver.write_markers()
    if moves:
        driver.move()
    assert driver.producer(driver.end(producer, commit=committed, version=2)) == (1001, 0)
    token = driver.end(producer, commit=not committed, version=2)
    assert driver.error(token) is E.INVALID_TXN_STATE
    assert driver.producer(driver.init(producer)) == (1001, 0)
    assert driver.error(driver.end(producer, commit=committed, version=2)) is E.PRODUCER_FENCED


@pytest.mark.parametrize("timed_out", [False, True])
def test_a_fence_at_the_last_epoch_changes_the_producer_id(timed_out: bool) -> None:
    driver = Driver()
    driver.opened(epoch=EPOCH_MAX)
    if timed_out:
        driver.advance(TIMEOUT_MS)
    else:
        token = driver.init()
    (markers,) = driver.markers
    assert (markers.producer_id, markers.producer_epoch) == (1000, EPOCH_MAX + 1)
    driver.write_markers()
    if timed_out:
        token = driver.init()
    assert driver.producer(token) == (1001, 1)
