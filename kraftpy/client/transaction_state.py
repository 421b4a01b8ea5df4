"""What a transactional producer knows of its transaction; no I/O, no clock (KIP-98, 360, 890).

Rules:

* One transaction at a time. Nothing is sent outside of one; once anything of it has failed, the
  only way on is to abort it.
* EndTxn is due as soon as a broker may have heard of the transaction, answered or not. Without
  that, a transaction ends here alone: a coordinator refuses to commit one that it doesn't know.
* In the second version of the protocol (`transaction.version` 2) a partition joins by being
  produced to, a group by a commit of offsets, and the answer to EndTxn brings the next epoch. In
  the first one both are announced to the coordinator before anything is written to them.
* In the first version an epoch lasts for many transactions, and what comes late does to the next
  one what it was meant to do to its own: EndTxn ends it. So once anything was lost, or failed, a
  new epoch is due, by InitProducerId. In the second version EndTxn has brought one.
* Being fenced is final: another producer goes on with the transactional id.
* A transaction can be handed over, open and complete, to be ended elsewhere. This producer's next
  one begins with a new epoch, which aborts it unless it was ended.
* An EndTxn may have been carried out although its answer was lost. When a repeated one is refused,
  what became of a commit is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto

from kraftpy.client.offsets import Partition
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.records import NO_PRODUCER_ID


class TransactionError(Exception):
    """What a producer has to do about its transaction before it can go on."""


class TransactionAbortedError(TransactionError):
    """The record was part of a transaction that was aborted before it was written."""


class OutcomeUnknownError(TransactionError):
    """The coordinator was told to commit, and what it did isn't known.

    The transaction is committed whole or aborted whole. The next one settles that when it begins:
    what is committed then stays, everything else is aborted.
    """


class ProducerFencedError(KafkaError):
    """Another producer goes on with the transactional id; this one can only be closed."""


class ProducerIdentity(NamedTuple):
    """A producer id and its epoch; what is written with an older epoch is refused."""

    id: int
    epoch: int


NOBODY = ProducerIdentity(NO_PRODUCER_ID, -1)


class OpenTransaction(NamedTuple):
    """All that it takes to end a transaction, for somebody else than who wrote in it.

    `timeout_ms` is that of the transaction, for who has to say that it was open for too long.
    """

    transactional_id: str
    producer: ProducerIdentity
    second_version: bool
    timeout_ms: int


class Status(Enum):
    """Where a producer is with its transactions."""

    UNINITIALIZED = auto()
    READY = auto()
    OPEN = auto()
    FAILED = auto()
    COMMITTING = auto()
    ABORTING = auto()
    FENCED = auto()


class Step(Enum):
    """What a coordinator was asked for."""

    INITIALIZE = auto()
    JOIN = auto()  # AddPartitionsToTxn, AddOffsetsToTxn
    COMMIT_OFFSETS = auto()
    COMMIT = auto()
    ABORT = auto()


class Verdict(Enum):
    """What an error means for the transaction."""

    AGAIN = auto()  # the same request may succeed later
    FAILED = auto()  # the transaction can only be aborted
    OVER = auto()  # there is no such transaction, which is what an abort is for
    FENCED = auto()
    UNKNOWN = auto()  # whether it is committed


_FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
_NOTHING_THERE = frozenset({ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_ID_MAPPING})


def judge(step: Step, code: ErrorCode) -> Verdict:
    """What a coordinator's answer means.

    What a partition's leader says of a batch only fails the transaction: it can't tell who was
    fenced from who was slow. The coordinator can, when the transaction is aborted.
    """
    if code.retriable:
        return Verdict.AGAIN
    if code in _FENCED:
        return Verdict.FENCED
    if step == Step.ABORT and code in _NOTHING_THERE:
        return Verdict.OVER
    if step == Step.COMMIT and code == ErrorCode.UNKNOWN_SERVER_ERROR:
        return Verdict.UNKNOWN
    return Verdict.FAILED


class TransactionState:
    """The transactions of one producer; who asks the brokers tells it what came of that."""

    def __init__(self) -> None:
        self.status = Status.UNINITIALIZED
        self.producer = NOBODY
        self.second_version = False
        self.failure: Exception | None = None
        self._wanted: dict[Partition, None] = {}
        self._joined: set[Partition] = set()
        self._groups: set[str] = set()
        self._heard_of = False
        self._new_epoch_due = False
        self._end_repeated = False

    # -- beginning

    def initialized(self, producer: ProducerIdentity, *, second_version: bool) -> None:
        """The coordinator gave an epoch: what was open of older ones is aborted."""
        assert self.status is Status.UNINITIALIZED, self.status
        self.producer = producer
        self.second_version = second_version
        self.status = Status.READY

    def begin(self) -> None:
        """A transaction begins, as yet here alone."""
        self.check_alive()
        if self.status is not Status.READY:
            raise RuntimeError("a transaction is open: commit or abort it first")
        self.status = Status.OPEN
        self._forget()

    def _forget(self) -> None:
        self.failure = None
        self._wanted.clear()
        self._joined.clear()
        self._groups.clear()
        self._heard_of = self._new_epoch_due = self._end_repeated = False

    # -- in the transaction

    @property
    def in_transaction(self) -> bool:
        """Whether there is one to commit or abort."""
        return self.status in (Status.OPEN, Status.FAILED)

    def check_alive(self) -> None:
        """Raises `ProducerFencedError` for good once this producer was fenced."""
        if self.status is Status.FENCED:
            assert self.failure is not None
            raise self.failure

    def check_open(self) -> None:
        """Raises unless something may be added to the transaction."""
        self.check_alive()
        if self.status is Status.FAILED:
            assert self.failure is not None
            raise self.failure
        if self.status is not Status.OPEN:
            raise RuntimeError("no transaction is open: begin one first")

    def want(self, partition: Partition) -> None:
        """Records are going to be written to a partition."""
        if not self.has_joined(partition):
            self._wanted[partition] = None

    def to_join(self) -> list[Partition]:
        """The partitions that have to be announced before anything is produced to them."""
        return list(self._wanted)

    def has_joined(self, partition: Partition) -> bool:
        """Whether a partition may be produced to."""
        return self.second_version or partition in self._joined

    def asked(self) -> None:
        """Something is about to be sent that can make a broker know of the transaction."""
        self._heard_of = True

    def joined(self, partitions: Iterable[Partition]) -> None:
        """The coordinator knows that the partitions are part of the transaction."""
        for partition in partitions:
            self._joined.add(partition)
            self._wanted.pop(partition, None)

    def group_to_join(self, group_id: str) -> bool:
        """Whether a group has to be announced before its offsets are sent."""
        return not self.second_version and group_id not in self._groups

    def group_joined(self, group_id: str) -> None:
        """The coordinator knows that the group's offsets are part of the transaction."""
        self._groups.add(group_id)

    def failed(self, error: Exception) -> None:
        """Something of the transaction wasn't done, or it isn't known whether it was."""
        self._new_epoch_due = True
        if self.status is Status.OPEN:
            self.status = Status.FAILED
            self.failure = error

    def may_come_late(self) -> None:
        """Something was sent that a broker may carry out behind the transaction's end."""
        self._new_epoch_due = True

    def fenced(self, message: str) -> ProducerFencedError:
        """This producer is at its end; returns the error that says so."""
        if not isinstance(self.failure, ProducerFencedError):
            self.failure = ProducerFencedError(ErrorCode.PRODUCER_FENCED, message)
        self.status = Status.FENCED
        return self.failure

    # -- handing over

    def hand_over(self) -> bool:
        """Everything is written, and somebody else ends it; whether EndTxn is due."""
        self.check_open()
        self.status = Status.UNINITIALIZED
        return self._heard_of

    def take_over(self, producer: ProducerIdentity, *, second_version: bool) -> None:
        """What this producer has open is to be ended here."""
        self.initialized(producer, second_version=second_version)
        self.begin()
        self.asked()

    # -- ending

    def commit(self) -> bool:
        """Everything is written; whether EndTxn is due."""
        self.check_open()
        return self._end(Status.COMMITTING)

    def abort(self) -> bool:
        """Nothing more will be written; whether EndTxn is due."""
        self.check_alive()
        if not self.in_transaction:
            raise RuntimeError("no transaction is open: there is nothing to abort")
        return self._end(Status.ABORTING)

    def _end(self, ending: Status) -> bool:
        self.status = ending
        if not self._heard_of:
            self.ended(None)
            return False
        return True

    def end_repeated(self) -> None:
        """EndTxn is sent another time: one before it may be carried out yet."""
        self._end_repeated = True

    def ended(self, producer: ProducerIdentity | None) -> None:
        """The transaction is over; `producer` is what EndTxn gave to go on with."""
        assert self.status in (Status.COMMITTING, Status.ABORTING), self.status
        if producer is not None and producer.id != NO_PRODUCER_ID:
            self.producer = producer
            self._new_epoch_due = False
        self.status = Status.UNINITIALIZED if self._new_epoch_due else Status.READY

    def not_ended(self) -> None:
        """The coordinator couldn't be asked, or doesn't know; the next transaction settles it."""
        assert self.status in (Status.COMMITTING, Status.ABORTING), self.status
        self.status = Status.UNINITIALIZED

    def refused(self, error: KafkaError, fenced_text: str) -> Exception:
        """The coordinator refused to end the transaction; returns what to raise."""
        committing = self.status is Status.COMMITTING
        verdict = judge(Step.COMMIT if committing else Step.ABORT, error.code)
        in_doubt = committing and (self._end_repeated or verdict is Verdict.UNKNOWN)
        answer: Exception = error
        if verdict is Verdict.FENCED:
            answer = self.fenced(fenced_text)
        elif in_doubt or not committing:
            self.status = Status.UNINITIALIZED
        else:
            self.status = Status.FAILED
            self.failure = error
        return OutcomeUnknownError(_IN_DOUBT) if in_doubt else answer


_IN_DOUBT = (
    "the coordinator was told to commit the transaction, and it isn't known whether it did; the"
    " next transaction begins with whatever it was"
)
