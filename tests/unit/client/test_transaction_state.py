"""What a transactional producer knows of its transaction, after any sequence of what can happen."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kraftpy.client.transaction_state import (
    NOBODY,
    OutcomeUnknownError,
    ProducerFencedError,
    ProducerIdentity,
    Status,
    Step,
    TransactionState,
    Verdict,
    judge,
)
from kraftpy.protocol.errors import ErrorCode, KafkaError

PARTITIONS = st.tuples(st.just("t"), st.integers(0, 2))
REFUSALS = [code for code in ErrorCode if code and not code.retriable]
ENDING = (Status.COMMITTING, Status.ABORTING)


class Producer(RuleBasedStateMachine):
    """What the rules of `transaction_state` say, beside it.

    `heard_of` and `late` are kept here from what was sent, in the simplest way there is.
    """

    @initialize(second=st.booleans())
    def start(self, second: bool) -> None:
        self.state = TransactionState()
        self.second = second
        self.epoch = 0
        self.heard_of = False
        self.late = False
        self.sent = 0
        self.joined: set[tuple[str, int]] = set()
        self.wanted: set[tuple[str, int]] = set()

    def is_in(self, *statuses: Status) -> bool:
        return self.state.status in statuses

    # -- beginning

    @precondition(lambda self: self.is_in(Status.UNINITIALIZED))
    @rule()
    def get_epoch(self) -> None:
        self.epoch += 1
        identity = ProducerIdentity(7, self.epoch)
        self.state.initialized(identity, second_version=self.second)
        assert self.state.producer == identity
        assert self.is_in(Status.READY)

    @rule()
    def begin(self) -> None:
        if self.is_in(Status.READY):
            self.state.begin()
            self.heard_of = self.late = False
            self.sent = 0
            self.joined, self.wanted = set(), set()
            assert self.state.in_transaction
        elif self.is_in(Status.FENCED):
            with pytest.raises(ProducerFencedError):
                self.state.begin()
        else:
            with pytest.raises(RuntimeError):
                self.state.begin()

    # -- in the transaction

    @precondition(lambda self: self.is_in(Status.OPEN))
    @rule(partition=PARTITIONS)
    def want(self, partition: tuple[str, int]) -> None:
        self.state.want(partition)
        if not self.second and partition not in self.joined:
            self.wanted.add(partition)

    @precondition(lambda self: self.is_in(Status.OPEN, Status.FAILED) and not self.second)
    @rule(data=st.data())
    def join(self, data: st.DataObject) -> None:
        to_join = self.state.to_join()
        assert set(to_join) == self.wanted
        if to_join:
            self.state.asked()
            self.heard_of = True
            if data.draw(st.booleans()):
                self.state.joined(to_join)
                self.joined |= self.wanted
                self.wanted = set()

    @precondition(lambda self: self.is_in(Status.OPEN, Status.FAILED))
    @rule()
    def send(self) -> None:
        self.state.asked()
        self.heard_of = True

    @precondition(lambda self: self.is_in(Status.OPEN))
    @rule(group=st.sampled_from(["g", "h"]))
    def send_offsets(self, group: str) -> None:
        assert not (self.second and self.state.group_to_join(group))
        if self.state.group_to_join(group):
            self.state.group_joined(group)
        assert not self.state.group_to_join(group)

    @precondition(lambda self: self.is_in(Status.OPEN, Status.FAILED))
    @rule()
    def fail(self) -> None:
        error = KafkaError(ErrorCode.MESSAGE_TOO_LARGE)
        before = self.state.failure
        self.state.failed(error)
        self.late = True
        assert self.is_in(Status.FAILED)
        # The first one is the reason.
        assert self.state.failure is (before or error)
        with pytest.raises(KafkaError):
            self.state.check_open()

    @precondition(lambda self: self.is_in(Status.OPEN, Status.FAILED, *ENDING))
    @rule()
    def lose_a_request(self) -> None:
        self.state.may_come_late()
        self.late = True

    # -- handing over

    @rule()
    def hand_over(self) -> None:
        if not self.is_in(Status.OPEN):
            with pytest.raises((RuntimeError, KafkaError)):
                self.state.hand_over()
            return
        assert self.state.hand_over() == self.heard_of
        # This one's next transaction has another epoch, which ends the one before.
        assert self.is_in(Status.UNINITIALIZED)
        other = TransactionState()
        other.take_over(self.state.producer, second_version=self.second)
        assert other.producer == self.state.producer
        assert other.commit()

    # -- ending

    @rule()
    def commit(self) -> None:
        if self.is_in(Status.OPEN):
            assert self.state.commit() == self.heard_of
            self._began_to_end()
        else:
            with pytest.raises((RuntimeError, KafkaError)):
                self.state.commit()

    @rule()
    def abort(self) -> None:
        if self.state.in_transaction:
            assert self.state.abort() == self.heard_of
            self._began_to_end()
        else:
            with pytest.raises((RuntimeError, KafkaError)):
                self.state.abort()

    def _began_to_end(self) -> None:
        if self.heard_of:
            assert self.is_in(*ENDING)
        else:
            assert self.is_in(Status.UNINITIALIZED if self.late else Status.READY)

    @precondition(lambda self: self.is_in(*ENDING))
    @rule()
    def end(self) -> None:
        if self.second:
            self.epoch += 1
            self.state.ended(ProducerIdentity(7, self.epoch))
            assert self.is_in(Status.READY)
            assert self.state.producer.epoch == self.epoch
        else:
            self.state.ended(NOBODY)
            # What was lost may do to the next transaction what it should have done to this one.
            assert self.is_in(Status.UNINITIALIZED if self.late else Status.READY)

    @precondition(lambda self: self.is_in(*ENDING))
    @rule()
    def repeat_the_end(self) -> None:
        self.state.end_repeated()
        self.sent += 1

    @precondition(lambda self: self.is_in(*ENDING))
    @rule()
    def give_up(self) -> None:
        self.state.not_ended()
        assert self.is_in(Status.UNINITIALIZED)

    @precondition(lambda self: self.is_in(*ENDING))
    @rule(code=st.sampled_from(REFUSALS))
    def refuse_the_end(self, code: ErrorCode) -> None:
        committing = self.is_in(Status.COMMITTING)
        verdict = judge(Step.COMMIT if committing else Step.ABORT, code)
        if verdict is Verdict.OVER:
            return  # that's an end
        told = self.state.refused(KafkaError(code), "text")
        in_doubt = committing and (self.sent > 0 or verdict is Verdict.UNKNOWN)
        assert isinstance(told, OutcomeUnknownError) == in_doubt
        if verdict is Verdict.FENCED:
            assert self.is_in(Status.FENCED)
        elif committing and not in_doubt:
            assert self.is_in(Status.FAILED)
        else:
            assert self.is_in(Status.UNINITIALIZED)
        assert in_doubt or isinstance(told, ProducerFencedError) == (verdict is Verdict.FENCED)

    # -- always

    @precondition(lambda self: not self.is_in(*ENDING))
    @rule(chance=st.integers(0, 9))
    def be_fenced(self, chance: int) -> None:
        if chance:
            return  # it ends the story: not too often
        self.state.fenced("text")
        assert self.is_in(Status.FENCED)

    @invariant()
    def a_fenced_producer_stays_it(self) -> None:
        if self.is_in(Status.FENCED):
            for attempt in (self.state.check_alive, self.state.check_open, self.state.begin):
                with pytest.raises(ProducerFencedError, match="text"):
                    attempt()
            assert not self.state.in_transaction

    @invariant()
    def only_an_open_transaction_takes_anything(self) -> None:
        if self.is_in(Status.OPEN):
            self.state.check_open()
        else:
            with pytest.raises((RuntimeError, KafkaError)):
                self.state.check_open()

    @invariant()
    def a_partition_is_produced_to_once_it_has_joined(self) -> None:
        for number in range(3):
            partition = ("t", number)
            assert self.state.has_joined(partition) == (
                self.state.second_version or partition in self.joined
            )


Producer.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestProducer = Producer.TestCase


@pytest.mark.parametrize("step", Step, ids=lambda step: step.name)
def test_what_a_coordinators_answer_means(step: Step) -> None:
    for code in ErrorCode:
        if code.retriable:
            assert judge(step, code) is Verdict.AGAIN
    for code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH):
        assert judge(step, code) is Verdict.FENCED
    for code in (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_ID_MAPPING):
        over = step is Step.ABORT
        assert judge(step, code) is (Verdict.OVER if over else Verdict.FAILED)
    unknown = step is Step.COMMIT
    expected = Verdict.UNKNOWN if unknown else Verdict.FAILED
    assert judge(step, ErrorCode.UNKNOWN_SERVER_ERROR) is expected
    assert judge(step, ErrorCode.TRANSACTION_ABORTABLE) is Verdict.FAILED


def test_of_a_refused_commit_the_transaction_can_be_aborted() -> None:
    state = TransactionState()
    state.initialized(ProducerIdentity(7, 1), second_version=True)
    state.begin()
    state.asked()
    assert state.commit()
    error = KafkaError(ErrorCode.TRANSACTION_ABORTABLE)
    assert state.refused(error, "text") is error
    assert state.abort()
    state.ended(ProducerIdentity(7, 2))
    assert state.status is Status.READY
