"""Where a lake ends, committed as the offsets of a consumer group, so that lag can be watched.

Nothing is read from there: a load goes on where the lake ends. A group is behind its lake after a
crash between the two, until the next load; it is never ahead.
"""

from __future__ import annotations

from collections.abc import Mapping

from kraftpy.client.group_admin import GroupAdmin
from kraftpy.pipeline.door import Door
from kraftpy.protocol.errors import KafkaError


def commit_ends(door: Door, topic: str, group: str, ends: Mapping[int, int]) -> None:
    """Commits the ends for partitions whose offset is another one.

    Raises KafkaError if a partition was refused: the group has members, or changed meanwhile.
    """
    wanted = {(topic, partition): end for partition, end in ends.items()}

    with door.brokers(topic) as brokers:
        admin = GroupAdmin(brokers.cluster())
        found = brokers.run(admin.committed(group))
        before = {name: found[name].offset if name in found else -1 for name in wanted}
        change = {name: end for name, end in wanted.items() if before[name] != end}
        if not change:
            return
        errors = brokers.run(admin.commit(group, change, before))
    for (_, partition), error in errors.items():
        raise KafkaError(
            error.code,
            f"the lake is loaded, but group {group} didn't take the offset of {topic}-{partition}:"
            f" {error.message}; it must have no members",
        )
