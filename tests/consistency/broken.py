"""kraftpy with a rule taken out: `python -m tests.consistency.broken NAME dev ...`.

For the tests that consistency runs find what is broken: each build breaks one promise on purpose,
by methods that are replaced before the command starts. The nodes are forked from it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from kraftpy.protocol.errors import ErrorCode
from kraftpy.server.partition import Partition
from kraftpy.server.replicas import ReplicaManager
from kraftpy.testing import Cluster


def acks_before_replication() -> None:
    """acks=all is answered when the leader alone has the records."""

    def when_committed(self: Partition, _: int, waiter: Callable[[ErrorCode], None]) -> None:
        gone = self.leadership is None
        waiter(ErrorCode.NOT_LEADER_OR_FOLLOWER if gone else ErrorCode.NONE)

    Partition.when_committed = when_committed  # type: ignore[method-assign]


def offsets_before_replication() -> None:
    """A coordinator takes what it has appended for committed, and serves it."""
    append = ReplicaManager.append_records

    def append_records(
        self: ReplicaManager, topic: str, partition: int, batch: bytes
    ) -> asyncio.Future[int]:
        target = self.get(topic, partition)
        offset = -1 if target is None else target.log.log_end_offset
        done = append(self, topic, partition, batch)
        if not done.done() and offset >= 0:
            done.set_result(offset)
        return done

    ReplicaManager.append_records = append_records  # type: ignore[method-assign]


def no_deduplication_after_failover() -> None:
    """A new leader doesn't know what idempotent producers have sent to the one before."""
    lead = Partition.lead

    def lead_and_forget(self: Partition, state: Any) -> None:
        is_new = self.leadership is None or self.leadership.leader_epoch != state.leader_epoch
        lead(self, state)
        if is_new:
            self.log.producers.truncate(-1)

    Partition.lead = lead_and_forget  # type: ignore[method-assign]


BUILDS = {
    build.__name__: build
    for build in (
        acks_before_replication,
        offsets_before_replication,
        no_deduplication_after_failover,
    )
}


def broken_cluster(name: str) -> Callable[[int], Cluster]:
    """What starts clusters of a broken build."""

    class Broken(Cluster):
        program = (sys.executable, "-m", __name__, name)

    return Broken


if __name__ == "__main__":
    from kraftpy.cli import main

    BUILDS[sys.argv.pop(1)]()
    main()
