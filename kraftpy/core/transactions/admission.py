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

Until requests lead to the coordinator nobody asks it, so nobody is admitted; and only an admitted
batch holds back the last stable offset. Logs may have transactional batches from before this rule,
and followers get them from leaders of an older release. Nobody ends their transactions, so they
count as plain records: readers with read_committed go on, and compaction does too.
"""

from __future__ import annotations

from typing import Final

from kraftpy.core.producers import TRANSACTION_VERSION_2, ProducerStateManager
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.records import BatchHeader

# Whether transactions in a log may be open, waiting for their marker.
TRANSACTIONS_MAY_BE_OPEN: Final = False


class NotAdmitted(KafkaError):
    """The batch is of no transaction that this partition knows of; the coordinator may."""

    def __init__(self, header: BatchHeader) -> None:
        super().__init__(
            ErrorCode.INVALID_TXN_STATE,
            f"producer {header.producer_id} has no transaction open here with epoch "
            f"{header.producer_epoch}: transactions are not available yet; produce without "
            "transactional.id",
        )


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


class Admission:
    """What one leader of a partition knows of transactions that may begin."""

    __slots__ = ("_tokens",)

    def __init__(self) -> None:
        self._tokens: dict[int, list[Token]] = {}

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

    def ended(self, producer_id: int, epoch: int, transaction_version: int) -> None:
        """A marker with this epoch came, whether it was written or the log had one like it."""
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
    ) -> None:
        """Whether a transactional batch may be appended.

        `named`: its request has a transactional id; `token`: what was asked for it. Raises
        NotAdmitted, and KafkaError: TRANSACTIONAL_ID_AUTHORIZATION_FAILED, INVALID_PRODUCER_EPOCH,
        OUT_OF_ORDER_SEQUENCE_NUMBER.
        """
        if not named:
            raise KafkaError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "a transactional batch without the transactional.id of who sends it",
            )
        producer_id, epoch = header.producer_id, header.producer_epoch
        if producers.has_open(producer_id, epoch):
            return
        known_epoch = producers.epoch_of(producer_id, now_ms)
        if known_epoch is not None and epoch < known_epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} has epoch {known_epoch} since; this batch has {epoch}",
            )
        if (
            token is None
            or not token.vouched
            or token.void
            or (token.producer_id, token.epoch) != (producer_id, epoch)
            or token not in self._tokens.get(producer_id, ())
        ):
            raise NotAdmitted(header)
        if (
            known_epoch is None
            and token.transaction_version >= TRANSACTION_VERSION_2
            and header.base_sequence != 0
        ):
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} begins here with sequence {header.base_sequence} in epoch "
                f"{epoch}, of which nothing was written before",
            )
