"""Which transactional batches a partition takes from producers: none, without a coordinator.

This is the one place to admit them. Two rules belong together:

* A transactional batch comes in only if a coordinator knows of its transaction and will write the
  marker that ends it (KIP-890). Otherwise it is INVALID_TXN_STATE, as in Kafka: no client tries
  again.
* Only an admitted batch holds back the last stable offset. Logs may have batches from before this
  rule, and followers get them from leaders of an older release. Nobody ends their transactions, so
  they count as plain records: readers with read_committed go on, and compaction does too.
"""

from __future__ import annotations

from typing import Final

from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.records import BatchHeader

# Whether transactions in a log may be open, waiting for their marker.
TRANSACTIONS_MAY_BE_OPEN: Final = False


def admit(header: BatchHeader) -> None:
    """Raises INVALID_TXN_STATE for a batch of a transaction that nobody coordinates."""
    if header.is_transactional:
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE,
            f"producer {header.producer_id} has no transaction open here: transactions are not "
            "available yet; produce without transactional.id",
        )
