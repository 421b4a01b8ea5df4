"""Random stories of producers that fence each other, with what must always hold.

* Each request is answered at most once, and markers are asked for only when their decision is in
  the log (the driver checks both, and that each step is one of the table).
* Nobody new gets an id and epoch that somebody has had.
* Of an id and epoch of version 2 there is one result, whoever asked, whatever failed or moved.
* Another machine that has read the log knows the same.
* When all is quiet, nobody waits, and nothing is left behind.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kraftpy.core.transactions import TransactionState
from kraftpy.core.transactions.states import EPOCH_MAX
from kraftpy.protocol.errors import ErrorCode

from .driver import P0, P1, P2, TIMEOUT_MS, Driver

IDS = st.sampled_from(["t", "u"])
PICK = st.integers(0, 9)
ERRORS = st.sampled_from([ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.MESSAGE_TOO_LARGE])
PARTITIONS = st.sampled_from([P0, P1, P2])


class Stories(RuleBasedStateMachine):
    version = 2

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(commits=False)
        self.newcomers: dict[str, str] = {}  # token -> id
        self.given: dict[str, list[tuple[int, int]]] = {"t": [], "u": []}
        self.tokens: list[str] = []
        self.results: dict[tuple[int, int], bool] = {}
        self.seen = 0

    def some(self, key: str, pick: int) -> tuple[int, int]:
        given = self.given[key]
        return given[-1 - pick % len(given)] if given else (1, 0)

    @rule(key=IDS)
    def arrive(self, key: str) -> None:
        token = self.driver.init(key=key)
        self.newcomers[token] = key
        self.tokens.append(token)

    @rule(key=IDS, pick=PICK)
    def go_on(self, key: str, pick: int) -> None:
        self.tokens.append(self.driver.init(self.some(key, pick), key=key))

    @rule(key=IDS, pick=PICK, partition=PARTITIONS, from_broker=st.booleans())
    def add(self, key: str, pick: int, partition: tuple[str, int], from_broker: bool) -> None:
        self.tokens.append(
            self.driver.add(
                self.some(key, pick),
                partition,
                version=self.version,
                key=key,
                from_broker=from_broker,
            )
        )

    @rule(key=IDS, pick=PICK, is_commit=st.booleans())
    def end(self, key: str, pick: int, is_commit: bool) -> None:
        producer = self.some(key, pick)
        self.tokens.append(
            self.driver.end(producer, commit=is_commit, version=self.version, key=key)
        )

    @rule(pick=PICK)
    def commit(self, pick: int) -> None:
        if self.driver.in_flight:
            self.driver.commit(pick % len(self.driver.in_flight))

    @rule(pick=PICK, error=ERRORS)
    def fail(self, pick: int, error: ErrorCode) -> None:
        if self.driver.in_flight:
            self.driver.fail(error, pick % len(self.driver.in_flight))

    @rule(pick=PICK)
    def time_out(self, pick: int) -> None:
        if self.driver.in_flight:
            self.driver.time_out(pick % len(self.driver.in_flight))

    @rule(pick=PICK)
    def write_markers(self, pick: int) -> None:
        if self.driver.markers:
            self.driver.write_markers(self.driver.markers.pop(pick % len(self.driver.markers)))

    @rule(ms=st.sampled_from([10, 200, 6_000, TIMEOUT_MS]))
    def wait(self, ms: int) -> None:
        self.driver.advance(ms)

    @rule(wrote=PICK)
    def move(self, wrote: int) -> None:
        """Some of what is in flight is in the log, and nobody was told."""
        for write in self.driver.in_flight[: wrote % (len(self.driver.in_flight) + 1)]:
            self.driver.append(write)
        self.driver.move()

    @rule(key=IDS)
    def age(self, key: str) -> None:
        """The id is near the end of its epochs."""
        known = self.driver.machine.find(key)
        busy = key in self.driver.machine._lanes
        if known and not busy and known.state.is_idle and known.producer_epoch < EPOCH_MAX - 1:
            self.given[key].append(self.driver.raise_epoch(EPOCH_MAX - 1, key))

    @rule(none=st.booleans())
    def producer_ids(self, none: bool) -> None:
        self.driver.next_producer_id = None if none else 10_000 + 1_000 * len(self.tokens)

    @invariant()
    def nobody_new_gets_what_somebody_had(self) -> None:
        for token, key in list(self.newcomers.items()):
            answer = self.driver.replies.get(token)
            if answer is None:
                continue
            del self.newcomers[token]
            if answer.error is ErrorCode.NONE:
                producer = answer.producer_id, answer.producer_epoch
                assert producer not in self.given[key]
                self.given[key].append(producer)

    @invariant()
    def one_result(self) -> None:
        for record in self.driver.log[self.seen :]:
            transaction = record.transaction
            if transaction is None or transaction.client_version != 2:
                continue
            if transaction.state.is_preparing:
                key = transaction.producer_id, transaction.producer_epoch
                is_commit = transaction.state is TransactionState.PREPARE_COMMIT
                assert self.results.setdefault(key, is_commit) is is_commit
        self.seen = len(self.driver.log)

    @invariant()
    def the_log_says_the_same(self) -> None:
        for key in ("t", "u"):
            assert self.driver.machine.find(key) == self.driver.last(key)

    def teardown(self) -> None:
        driver = self.driver
        if driver.next_producer_id is None:
            driver.next_producer_id = 10**6
        while driver.in_flight:
            driver.commit()
        driver.commits = True
        for _ in range(3):
            driver.advance(2 * TIMEOUT_MS)
            driver.write_markers()
        assert set(driver.replies) == set(self.tokens)
        assert driver.machine._lanes == {}
        assert driver.machine.next_deadline() is None
        states = {driver.state(key) for key in ("t", "u")} - {""}
        assert states <= {"Empty", "CompleteCommit", "CompleteAbort"}


class OldStories(Stories):
    """The same with clients of version 0."""

    version = 0


TestStories = Stories.TestCase
TestStories.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestOldStories = OldStories.TestCase
TestOldStories.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
