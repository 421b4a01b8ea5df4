"""kraftpy with a rule taken out: `python -m tests.consistency.broken NAME dev ...`.

NAME worker TASK plays one client of a workload, NAME tests TEST ... runs tests.

For the tests that consistency runs find what is broken: each build breaks one promise on purpose,
by methods that are replaced before the command starts. The nodes are forked from it.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from kraftpy.core.metadata import PartitionState, leader_commands
from kraftpy.core.metadata.commands import InSync
from kraftpy.core.metadata.elections import Electorate
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.records import build_batch, iter_records, split_batches
from kraftpy.server.replication.partition import Partition
from kraftpy.server.replication.replicas import ReplicaManager
from kraftpy.testing import Cluster
from kraftpy.testing.consistency.runner import quick_cluster
from kraftpy.testing.consistency.worker import Task

from . import broken_leases as leases
from . import broken_shares as shares
from . import broken_transactions as transactions

_LEADER_EPOCH_AT = 12  # in a batch


def acks_before_replication() -> None:
    """acks=all is answered when the leader alone has the records."""

    def when_committed(self: Partition, _: int, waiter: Callable[[ErrorCode], None]) -> None:
        gone = self.leadership is None
        waiter(ErrorCode.NOT_LEADER_OR_FOLLOWER if gone else ErrorCode.NONE)

    Partition.when_committed = when_committed  # type: ignore[method-assign]


def offsets_before_replication() -> None:
    """A coordinator takes what it has appended for committed, and serves it."""
    transactions.take_appended_for_committed(lambda topic: True)


def commits_in_two_parts() -> None:
    """A coordinator writes a commit of many partitions as two batches, one after the other."""
    append = ReplicaManager.append_records

    def append_halves(
        self: ReplicaManager, topic: str, partition: int, batch: bytes
    ) -> asyncio.Future[int]:
        records = [(r.timestamp, r.key, r.value, r.headers) for r in iter_records(batch, 0)]
        middle = len(records) // 2
        if not middle:
            return append(self, topic, partition, batch)
        first = append(self, topic, partition, build_batch(records[:middle]))

        async def append_both() -> int:
            await asyncio.sleep(0.05)
            second = append(self, topic, partition, build_batch(records[middle:]))
            offset = await first
            await second
            return offset

        return asyncio.ensure_future(append_both())

    ReplicaManager.append_records = append_halves  # type: ignore[method-assign]


def truncation_to_the_high_watermark() -> None:
    """A follower of a new leader cuts its log to its high watermark, as before KIP-101."""
    follow = Partition.follow

    def follow_from_the_high_watermark(self: Partition, state: PartitionState) -> bool:
        is_new = follow(self, state)
        if is_new and self.following is not None and self.log.log_end_offset > self.high_watermark:
            self.log.truncate_to(self.high_watermark)
            self.following.truncated(self.log)
        return is_new

    Partition.follow = follow_from_the_high_watermark  # type: ignore[method-assign]


def followers_that_stamp_their_epoch() -> None:
    """A follower writes its leader's epoch into what comes from a leader before."""
    append = Partition.append_as_follower

    def append_stamped(
        self: Partition, records: memoryview | None, high_watermark: int, log_start_offset: int
    ) -> int:
        if records:
            content = bytearray(records)
            for position, _ in split_batches(content):
                struct.pack_into(">i", content, position + _LEADER_EPOCH_AT, self.leader_epoch)
            records = memoryview(content)
        return append(self, records, high_watermark, log_start_offset)

    Partition.append_as_follower = append_stamped  # type: ignore[method-assign]


def isr_expansion_without_the_epoch_check() -> None:
    """Whoever was proposed joins the ISR, be it in another life by now (before KIP-903)."""
    check_isr = leader_commands._check_isr

    def check_ids(partition: PartitionState, electorate: Electorate, isr: Sequence[InSync]) -> None:
        brokers = electorate.brokers
        living = [
            replace(each, broker_epoch=brokers[each.broker_id].epoch)
            if each.broker_id in brokers
            else each
            for each in isr
        ]
        check_isr(partition, electorate, living)

    leader_commands._check_isr = check_ids


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
        truncation_to_the_high_watermark,
        followers_that_stamp_their_epoch,
        isr_expansion_without_the_epoch_check,
        offsets_before_replication,
        commits_in_two_parts,
        no_deduplication_after_failover,
        transactions.lso_ignored,
        transactions.marker_unreplicated,
        transactions.prepare_unreplicated,
        transactions.complete_early,
        transactions.no_fencing,
        transactions.epoch_not_bumped,
        transactions.no_admission,
        transactions.pending_visible,
        shares.tombstones_first,
        shares.reset_primary_first,
        shares.stable_is_max,
        shares.claims_unreplicated,
        shares.no_generation_check,
        shares.slot_before_revoked,
        shares.lane_skips,
        shares.session_keeps_slice,
        leases.lease_twice,
        leases.ack_unpersisted,
        leases.gap_skipped,
        leases.count_forgotten,
        leases.stale_leader_writes,
    )
}


@dataclass(frozen=True, slots=True)
class Case:
    """A workload and a fault that catch a build, and the checkers of which one has to see it.

    What goes wrong only when a crash comes between two writes, or for clients that no workload has,
    is caught by each of `tests`, which play it through. `clients`: what is broken is theirs.
    """

    workload: str = ""
    fault: str = ""
    checkers: frozenset[str] = frozenset()
    tests: tuple[str, ...] = ()
    clients: bool = False


_LOSS = frozenset({"lost-write", "unseen", "inconsistent-offsets"})
_REGRESSION = frozenset({"offset-regression", "linearizable", "stale-read"})
_HALVES = frozenset({"torn", "lost-transaction", "aborted", "stuck"})
_SKIPPED = frozenset({"claimed-unprocessed", "key-order", "all-processed"})
_TWO_LOGS = (
    "tests/unit/core/test_groups/test_two_logs.py::test_at_every_crash_point",
    "tests/simulation/test_cooperative.py::test_no_seed_breaks_an_invariant_of_claims",
)
_STALE_LEADERS = (
    "tests/unit/core/test_leases/test_state.py",
    "tests/simulation/test_served_leases.py"
    "::test_no_seed_breaks_an_invariant_of_leases_as_they_are_served",
)
CASES = {
    "acks_before_replication": Case("queue", "partition", _LOSS),
    "truncation_to_the_high_watermark": Case("queue", "successors", _LOSS),
    "followers_that_stamp_their_epoch": Case(
        "replicas", "kill-all", frozenset({"replica-divergence", "epochs"})
    ),
    "isr_expansion_without_the_epoch_check": Case("offsets", "late-expansion", _REGRESSION),
    "offsets_before_replication": Case("offsets", "partition", _REGRESSION),
    "commits_in_two_parts": Case("commits", "kill-coordinator", frozenset({"torn-commit"})),
    "no_deduplication_after_failover": Case("queue", "unanswered", frozenset({"duplicate"})),
    "lso_ignored": Case("list-append", "kill-client", frozenset({"G1a"})),
    "marker_unreplicated": Case("bank", "unheard", _HALVES),
    "prepare_unreplicated": Case("bank", "partition", _HALVES),
    "complete_early": Case("bank", "kill-client", frozenset({"torn"})),
    "epoch_not_bumped": Case("bank", "late-frames", _HALVES),
    "no_fencing": Case("transform", "hijack", frozenset({"transformed-twice"})),
    "no_admission": Case("list-append", "late-frames", _HALVES),
    "pending_visible": Case("transform", "kill-client", frozenset({"untransformed"})),
    "tombstones_first": Case(tests=_TWO_LOGS),
    "reset_primary_first": Case(tests=_TWO_LOGS),
    "stable_is_max": Case("cooperative", "kill-client", _SKIPPED),
    "claims_unreplicated": Case(
        "cooperative", "partition", frozenset({"claim-lost", "processed-anew"})
    ),
    "no_generation_check": Case("cooperative", "freeze-client", frozenset({"stale-commit"})),
    "slot_before_revoked": Case(
        "cooperative", "kill-client", frozenset({"double-ownership"}), clients=True
    ),
    "lane_skips": Case("cooperative", "kill-client", _SKIPPED, clients=True),
    "session_keeps_slice": Case(
        tests=("tests/unit/server/replication/test_fetch_sessions.py",),
    ),
    "lease_twice": Case("share", "kill-client", frozenset({"leased-twice"})),
    "ack_unpersisted": Case("share", "partition", frozenset({"done-again"})),
    "gap_skipped": Case("share", "kill", frozenset({"lost"})),
    "count_forgotten": Case("share", "kill", frozenset({"miscounted"})),
    "stale_leader_writes": Case(tests=_STALE_LEADERS),
}


def broken_cluster(name: str) -> Callable[..., Cluster]:
    """What starts clusters of a broken build."""

    class Broken(Cluster):
        program = _program(name)

    return partial(quick_cluster, kind=Broken)


@contextmanager
def broken_clients(name: str) -> Iterator[None]:
    """Has the clients of runs be those of a broken build."""

    def command(task: Task) -> list[str]:
        return [*_program(name), "worker", json.dumps(asdict(task))]

    whole, Task.command = Task.command, command  # type: ignore[method-assign]
    try:
        yield
    finally:
        Task.command = whole  # type: ignore[method-assign]


def _program(name: str) -> tuple[str, ...]:
    return sys.executable, "-m", "tests.consistency.broken", name


def tests_command(name: str, tests: Sequence[str]) -> list[str]:
    """What runs tests of a broken build."""
    return [*_program(name), "tests", *tests, "-q", "-x", "-p", "no:cacheprovider", "-n0"]


def main() -> int:
    """Imports what is needed alone: nodes start with this, too."""
    BUILDS[sys.argv.pop(1)]()
    if sys.argv[1] == "worker":
        from kraftpy.testing.consistency import worker_process

        del sys.argv[1]
        worker_process.main()
    elif sys.argv[1] == "tests":
        import pytest

        return int(pytest.main(sys.argv[2:]))
    else:
        from kraftpy import cli

        cli.main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
