"""Who leads a partition.

Rules: only a broker that is registered and not fenced leads. The leader stays while it can; else
the first replica that is in sync takes over; else, if the topic allows an unclean election, the
first replica that is there, alone in the new ISR (its records win, others' are lost); else nobody.
The last member of an ISR stays in it even when its broker is gone, because it has all committed
records. A change of leader, also to nobody, raises the leader epoch; the caller raises the
partition epoch, once for all that it changes.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from kraftpy.core.metadata.records import NO_LEADER, PartitionState


def elect(
    partition: PartitionState, active: Container[int], unclean: bool
) -> PartitionState | None:
    """The partition with the leader it should have, given the active brokers; None if it has it."""
    if partition.leader in active:
        return None
    leader, isr = NO_LEADER, partition.isr
    for replica in partition.replicas:
        if replica in active and replica in partition.isr:
            leader = replica
            break
    else:
        survivor = next((each for each in partition.replicas if each in active), None)
        if unclean and survivor is not None:
            leader, isr = survivor, (survivor,)
    if leader == partition.leader:
        return None
    return replace(
        partition,
        leader=leader,
        isr=isr,
        leader_epoch=partition.leader_epoch + 1,
    )


def without(partition: PartitionState, broker_id: int) -> PartitionState | None:
    """The partition with the broker out of its ISR; None if it is not there, or the last there."""
    isr = tuple(replica for replica in partition.isr if replica != broker_id)
    if not isr or len(isr) == len(partition.isr):
        return None
    return replace(partition, isr=isr)
