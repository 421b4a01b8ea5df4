"""The transaction coordinator: what becomes of a transactional id (KIP-98).

`states` is the table, `rules` what a request does, `machine` the coordinator of one partition of
`__transaction_state`, `records` and `codec` their form in its log, `markers` what is owed to the
leaders of a transaction's partitions. On the other side `admission` says which batches a partition
takes.
"""

from kraftpy.core.transactions.codec import TransactionCodec
from kraftpy.core.transactions.machine import Markers, TransactionConfig, TransactionMachine
from kraftpy.core.transactions.memory import TransactionMemory
from kraftpy.core.transactions.rules import Answer, Wish
from kraftpy.core.transactions.states import (
    VERSION_0,
    VERSION_2,
    Partition,
    Transaction,
    TransactionState,
)

__all__ = [
    "VERSION_0",
    "VERSION_2",
    "Answer",
    "Markers",
    "Partition",
    "Transaction",
    "TransactionCodec",
    "TransactionConfig",
    "TransactionMachine",
    "TransactionMemory",
    "TransactionState",
    "Wish",
]
