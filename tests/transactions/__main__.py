"""kraftpy with transactions: `python -m tests.transactions ...`; nodes fork from it."""

from __future__ import annotations

from kraftpy.core.transactions.admission import Admission
from kraftpy.protocol.api import ADVERTISED, ApiKey
from kraftpy.server.handlers import transactional_ids
from kraftpy.server.handlers.registry import handles
from kraftpy.server.node import processes

VERSIONS = {
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 5),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
    ApiKey.END_TXN: (0, 5),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
    ApiKey.LIST_TRANSACTIONS: (0, 2),
}


def install() -> None:
    """Every broker made from here on serves transactions, and nodes take their batches."""
    handles(ApiKey.ADD_PARTITIONS_TO_TXN)(transactional_ids.add_partitions_to_txn)
    handles(ApiKey.ADD_OFFSETS_TO_TXN)(transactional_ids.add_offsets_to_txn)
    handles(ApiKey.END_TXN)(transactional_ids.end_txn)
    handles(ApiKey.DESCRIBE_TRANSACTIONS, long=True)(transactional_ids.describe_transactions)
    handles(ApiKey.LIST_TRANSACTIONS, long=True)(transactional_ids.list_transactions)
    ADVERTISED.update(VERSIONS)
    Admission.check = lambda *_, **__: None  # type: ignore[assignment, method-assign]
    processes.TRANSACTIONS_MAY_BE_OPEN = True  # type: ignore[misc]


if __name__ == "__main__":
    from kraftpy.cli import main

    install()
    main()
