"""kraftpy with transactions, as long as no release serves them.

`python -m tests.transactions dev ...` is like `kraftpy dev ...`. Requests lead to the coordinator,
and its markers into the logs. Partitions take transactional batches, too: nobody is asked yet
whether they belong to a transaction, and they wait for their marker.
"""

from __future__ import annotations

import sys

from kraftpy.testing import Cluster


class TransactionalCluster(Cluster):
    """One whose nodes are of this build."""

    program = (sys.executable, "-m", "tests.transactions")
