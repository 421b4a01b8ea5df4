"""Which transactional batches the leader of a partition takes from producers (KIP-890).

A transaction that the coordinator doesn't know of would never end, and hold back every reader with
read_committed. So a batch is taken only if a transaction of its producer and epoch is open here, or
if the coordinator was asked for it. `Admission` is what one leadership knows of such questions:

* A producer's older epoch is INVALID_PRODUCER_EPOCH, whatever the coordinator has said
  (KAFKA-19690).
* What the coordinator has said holds for the one request that asked, in this leadership, and until
  a marker comes (KAFKA-14884): the transaction that was asked about has ended then. But a marker of
  version 2 has the epoch of the next transaction, and leaves questions about that one alone.
* Who sends a transactional batch says whose it is, by its transactional id.
* A producer of which nothing is known begins with sequence 0, if each of its transactions has an
  epoch of its own (KAFKA-18202): it has written nothing in this one, so something is missing.
* A batch that its producer is told to send again comes before those behind it also where nothing is
  known of the producer (as in Kafka, by its lowest sequence).
"""

from __future__ import annotations

from collections.abc import Callable

from kraftpy.core.producers import TRANSACTION_VERSION_2, ProducerStateManager
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.records import BatchHeader

NO_TRANSACTIONS_YET = "transactions are not available yet; produce without transactional.id"

# Of so many producers it is known what they are to send again; then the first of them is forgotten.
GAPS_MAX = 1_000


_NOT_OPEN = "the producer has no transaction open here with this epoch"


class NotAdmitted(KafkaError):
    """The batch is of no transaction that this partition knows of; the coordinator may."""

    def __init__(self, header: BatchHeader) -> None:
        super().__init__(ErrorCode.INVALID_TXN_STATE, _NOT_OPEN)
        self.header = header


class Token:
    """A question to the coordinator about a producer and its epoch, and what it said.

    `transaction_version` is that by which the producer writes.
    """

    __slots__ = ("epoch", "producer_id", "transaction_version", "void", "vouched")

    def __init__(self, producer_id: int, epoch: int, transaction_version: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.transaction_version = transaction_version
        self.vouched = False
        self.void = False


Ask = Callable[[BatchHeader], Token | None]
"""Asks the coordinator for a batch; None if the answer isn't there yet. Raises KafkaError."""


class Admission:
    """What one leader of a partition knows of transactions that may begin."""

    __slots__ = ("_gaps", "_tokens")

    def __init__(self) -> None:
        self._tokens: dict[int, list[Token]] = {}
        # By producer: its epoch, and the lowest sequence that it is to send again.
        self._gaps: dict[int, tuple[int, int]] = {}

    def ask(self, producer_id: int, epoch: int, transaction_version: int) -> Token:
        """The coordinator is about to be asked; `settle` has to follow."""
        token = Token(producer_id, epoch, transaction_version)
        self._tokens.setdefault(producer_id, []).append(token)
        return token

    def vouch(self, token: Token) -> None:
        """The coordinator has the partition in the producer's transaction."""
        token.vouched = True

    def settle(self, token: Token) -> None:
        """Whoever asked has appended, or has given up."""
        tokens = self._tokens[token.producer_id]
        tokens.remove(token)
        if not tokens:
            del self._tokens[token.producer_id]

    def refused(self, header: BatchHeader) -> None:
        """The producer of this batch was told to send it again."""
        producer_id, epoch, sequence = (
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
        )
        gap = self._gaps.pop(producer_id, None)
        if gap is not None and gap[0] == epoch:
            sequence = min(sequence, gap[1])
        elif len(self._gaps) >= GAPS_MAX:
            del self._gaps[next(iter(self._gaps))]
        self._gaps[producer_id] = epoch, sequence

    def ended(self, producer_id: int, epoch: int, transaction_version: int) -> None:
        """A marker with this epoch came, whether it was written or the log had one like it."""
        self._gaps.pop(producer_id, None)
        for token in self._tokens.get(producer_id, ()):
            if token.epoch < epoch or (
                token.epoch == epoch and transaction_version < TRANSACTION_VERSION_2
            ):
                token.void = True

    def check(
        self,
        header: BatchHeader,
        producers: ProducerStateManager,
        now_ms: int,
        named: bool,
        token: Token | None = None,
        ask: Ask | None = None,
    ) -> None:
        """Whether a transactional batch may be appended.

        `named`: its request has a transactional id; `token`: what was asked for it; `ask`: who asks
        where that is to be done here. Raises what `ask` does, NotAdmitted, and KafkaError:
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED, INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER.
        """
        if not named:
            raise KafkaError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "a transactional batch without the transactional.id of who sends it",
            )
        producer = header.producer_id, header.producer_epoch
        if not self.admits(producer, producers, now_ms, token):
            if token is None and ask is not None:
                token = ask(header)
            if token is None or not self.admits(producer, producers, now_ms, token):
                raise NotAdmitted(header)
        if token is not None and producers.epoch_of(header.producer_id, now_ms) is None:
            self._check_first(header, token)

    def admits(
        self,
        producer: tuple[int, int],
        producers: ProducerStateManager,
        now_ms: int,
        token: Token | None = None,
    ) -> bool:
        """Whether this producer (id and epoch) may write in its transaction; else the coordinator
        may know. `token`: what it was asked. Raises KafkaError: INVALID_PRODUCER_EPOCH.
        """
        producer_id, epoch = producer
        if producers.has_open(producer_id, epoch):
            return True
        known_epoch = producers.epoch_of(producer_id, now_ms)
        if known_epoch is not None and epoch < known_epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} has epoch {known_epoch} since; this batch has {epoch}",
            )
        return (
            token is not None
            and token.vouched
            and not token.void
            and (token.producer_id, token.epoch) == producer
            and token in self._tokens.get(producer_id, ())
        )

    def _check_first(self, header: BatchHeader, token: Token) -> None:
        """Whether a producer of which nothing is known may begin with this batch."""
        producer_id, epoch, sequence = (
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
        )
        gap = self._gaps.get(producer_id)
        if (sequence != 0 and token.transaction_version >= TRANSACTION_VERSION_2) or (
            gap is not None and gap[0] == epoch and sequence > gap[1]
        ):
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} begins here with sequence {sequence} in epoch {epoch}; "
                f"{0 if gap is None else gap[1]} comes first",
            )
