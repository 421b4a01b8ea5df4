"""kraftpy with a slow disk, a defect or a low limit that tests switch on.

`python -m tests.dashboards.breakable` is `kraftpy`, but while the folder that KRAFTPY_BREAKABLE
names has

* `slow-disk`: every fsync takes `SLOW_S` longer;
* `defect`: the handler of ListGroups fails;
* `no-twin`: the broker whose id is in the file doesn't fetch the log of claims;
* `few-offsets`: metrics tell of `OFFSETS` committed offsets, not of 100,000;
* `old-certificate`: metrics tell of a certificate that is good for `LEFT_S`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kraftpy.core.metadata.records import INDIVIDUAL_OFFSETS_TOPIC
from kraftpy.metrics.channel import Frame
from kraftpy.protocol.api import ApiKey
from kraftpy.server.handlers.table import HANDLERS
from kraftpy.server.node import metrics
from kraftpy.server.replication.partition import Partition
from kraftpy.server.replication.replica_fetcher import ReplicaFetcher

FOLDER = "KRAFTPY_BREAKABLE"
SLOW_DISK = "slow-disk"
DEFECT = "defect"
FEW_OFFSETS = "few-offsets"
NO_TWIN = "no-twin"
OLD_CERTIFICATE = "old-certificate"
LEFT_S = 10 * 86400.0
SLOW_S = 1.2
OFFSETS = 1


def _break(folder: Path) -> None:
    slow_disk, defect, few_offsets = folder / SLOW_DISK, folder / DEFECT, folder / FEW_OFFSETS
    fdatasync = os.fdatasync

    def slow_fdatasync(fd: Any) -> None:
        fdatasync(fd)
        if slow_disk.exists():
            time.sleep(SLOW_S)

    os.fdatasync = slow_fdatasync
    spec = HANDLERS[ApiKey.LIST_GROUPS]
    list_groups: Callable[..., Any] = spec.function

    def failing(*args: Any) -> Any:
        if defect.exists():
            raise RuntimeError("the defect that a test asked for")
        return list_groups(*args)

    spec.function = failing
    groups, offsets_max = metrics.BrokerNumbers._groups, metrics.OFFSETS_MAX

    def limited(self: metrics.BrokerNumbers) -> Iterator[Frame]:
        metrics.OFFSETS_MAX = OFFSETS if few_offsets.exists() else offsets_max
        return groups(self)

    metrics.BrokerNumbers._groups = limited  # type: ignore[method-assign]
    old, topics = folder / OLD_CERTIFICATE, metrics.BrokerNumbers._topics

    def with_certificate(self: metrics.BrokerNumbers) -> Iterator[Frame]:
        if old.exists():
            samples = metrics.Samples()
            expiry_s = time.time() + LEFT_S
            samples.add("kraftpy_tls_certificate_expiry_timestamp_seconds", expiry_s, "SSL")
            yield samples.frame()
        yield from topics(self)

    metrics.BrokerNumbers._topics = with_certificate  # type: ignore[method-assign]
    no_twin, add = folder / NO_TWIN, ReplicaFetcher.add

    def choosy(self: ReplicaFetcher, partition: Partition) -> None:
        its = partition.topic == INDIVIDUAL_OFFSETS_TOPIC and no_twin.exists()
        if not its or no_twin.read_text() != str(self._host.node_id):
            add(self, partition)

    ReplicaFetcher.add = choosy  # type: ignore[method-assign]


if __name__ == "__main__":
    from kraftpy.cli import main

    _break(Path(os.environ[FOLDER]))
    main()
