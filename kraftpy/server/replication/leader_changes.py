"""What becomes of the partitions that a broker leads or follows: counted for metrics, and told.

Each change of in-sync replicas and each election is counted by the broker that leads after it, so
that the sum over the brokers is right.
"""

from __future__ import annotations

import logging
from logging import INFO, WARNING

from kraftpy.core.metadata import PartitionState
from kraftpy.events import emit

log = logging.getLogger(__name__)


class LeaderChanges:
    """Changes of in-sync replicas, and elections of a replica that wasn't in sync."""

    __slots__ = ("expansions", "shrinks", "unclean_elections")

    def __init__(self) -> None:
        self.expansions = self.shrinks = self.unclean_elections = 0

    def note(
        self, node_id: int, topic: str, index: int, old: PartitionState | None, new: PartitionState
    ) -> None:
        """The metadata of a partition has changed; `node_id` is this broker's."""
        name = f"{topic}-{index}"
        if old is None:
            emit(log, INFO, "partition-added", partition=name, replicas=new.replicas)
            return
        if new.leader_epoch != old.leader_epoch and node_id in new.replicas:
            _tell_role(node_id, name, old, new)
        if new.leader == node_id:
            if (new.adding, new.removing) != (old.adding, old.removing):
                _tell_reassignment(name, new)
            self._leads(node_id, name, old, new)

    def _leads(self, node_id: int, name: str, old: PartitionState, new: PartitionState) -> None:
        """A partition that this broker leads has another leader or other replicas in sync."""
        if new.leader != old.leader and _is_unclean(node_id, old):
            self.unclean_elections += 1
            emit(log, WARNING, "unclean-election", partition=name, epoch=new.leader_epoch)
            return
        out = sorted(set(old.isr) - set(new.isr))
        if out:
            self.shrinks += 1
            emit(log, WARNING, "isr-shrunk", partition=name, isr=new.isr, out=out)
        joined = sorted(set(new.isr) - set(old.isr))
        if joined:
            self.expansions += 1
            emit(log, INFO, "isr-expanded", partition=name, isr=new.isr, joined=joined)


def _is_unclean(node_id: int, old: PartitionState) -> bool:
    """Whether others may have acknowledged what the new leader lacks.

    The only replica leads again after a crash with all that there ever was: no election lost that.
    """
    return node_id not in old.isr and node_id not in old.elr and old.replicas != (node_id,)


def _tell_role(node_id: int, name: str, old: PartitionState, new: PartitionState) -> None:
    """The partition, of which this broker has a replica, is in another leader epoch."""
    epoch, before, leader = new.leader_epoch, old.leader, new.leader
    if leader == node_id:
        emit(
            log, INFO, "partition-leader", partition=name, epoch=epoch, previous=before, isr=new.isr
        )
    elif leader < 0:
        emit(log, WARNING, "partition-offline", partition=name, epoch=epoch, previous=before)
    elif leader != before:  # Else replicas were taken away, and the leader goes on.
        emit(
            log,
            INFO,
            "partition-follower",
            partition=name,
            epoch=epoch,
            previous=before,
            leader=leader,
        )


def _tell_reassignment(name: str, new: PartitionState) -> None:
    if new.adding or new.removing:
        adding, removing = new.adding, new.removing
        emit(log, INFO, "reassignment-started", partition=name, adding=adding, removing=removing)
    else:
        emit(log, INFO, "reassignment-ended", partition=name, replicas=new.replicas)
