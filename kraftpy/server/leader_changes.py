"""What happens to the partitions that a broker leads, counted for metrics."""

from __future__ import annotations

from kraftpy.core.metadata import PartitionState


class LeaderChanges:
    """Changes of in-sync replicas, and elections of a replica that wasn't in sync.

    Each is counted by the broker that leads after it, so that the sum over the brokers is right.
    """

    __slots__ = ("expansions", "shrinks", "unclean_elections")

    def __init__(self) -> None:
        self.expansions = self.shrinks = self.unclean_elections = 0

    def note(self, node_id: int, old: PartitionState | None, new: PartitionState) -> None:
        """The metadata of a partition has changed; `node_id` is this broker's."""
        if old is None or new.leader != node_id:
            return
        if new.leader != old.leader and node_id not in old.isr and node_id not in old.elr:
            self.unclean_elections += 1
            return
        if set(old.isr) - set(new.isr):
            self.shrinks += 1
        if set(new.isr) - set(old.isr):
            self.expansions += 1
