"""kraftpy that takes transactional batches: `python -m tests.transactional dev ...`.

Nobody is asked whether they belong to a transaction, and they wait for their marker: for what a
partition has to do before there is a coordinator that would be asked.
"""

from __future__ import annotations

import sys

from kraftpy.core.transactions.admission import Admission
from kraftpy.server.node import processes
from kraftpy.testing import Cluster


class TransactionalCluster(Cluster):
    """One whose nodes are of this build."""

    program = (sys.executable, "-m", "tests.transactional")


def admit_all() -> None:
    """Methods are replaced before the command starts; the nodes are forked from it."""
    Admission.check = lambda *_, **__: None  # type: ignore[assignment, method-assign]
    processes.TRANSACTIONS_MAY_BE_OPEN = True  # type: ignore[misc]


if __name__ == "__main__":
    from kraftpy.cli import main

    admit_all()
    main()
