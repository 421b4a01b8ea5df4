"""Offsets of consumer groups that jobs commit: to be watched, or for a group to go on from.

Nothing is read from there: a load goes on where the lake ends, a mirror where its checkpoint says.
A group that is to be watched is behind after a crash between the two, until the next time; it is
never ahead. What a mirror translates for a group at the copy (rule 343):

* It never goes back, and is left alone while the group has members there: they commit themselves.
* Groups of mirrors and sinks themselves aren't translated, nor share groups.
* What the other cluster doesn't take of one group is told, and keeps no other from going on: there
  its name may be that of a share group, or texts be shorter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from kraftpy.client.group_admin import CommittedOffset, GroupAdmin
from kraftpy.client.offsets import OffsetAndMetadata
from kraftpy.frozen import NamedTuple
from kraftpy.pipeline.door import Door
from kraftpy.pipeline.offset_syncs import Syncs, translated
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.spark.brokers import Brokers
from kraftpy.spark.positions import Partition

_logger = logging.getLogger("kraftpy.pipeline")

_OURS = ("kraftpy-mirror.", "kraftpy-sink.")
_NOT_NOW = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.UNEXPECTED_OFFSET,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    }
)
_NOT_THERE = frozenset({ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.OFFSET_METADATA_TOO_LARGE})


def commit_ends(door: Door, topic: str, group: str, ends: Mapping[int, int]) -> None:
    """Commits where the lake ends for partitions whose offset is another one.

    Raises KafkaError if a partition was refused: the group has members, or changed meanwhile.
    """
    with door.brokers(topic) as brokers:
        commit_places(brokers, group, {(topic, number): end for number, end in ends.items()})


def commit_places(brokers: Brokers, group: str, wanted: Mapping[Partition, int]) -> None:
    """Commits offsets for partitions whose offset is another one.

    Raises KafkaError if a partition was refused: the group has members, or changed meanwhile.
    """
    admin = GroupAdmin(brokers.cluster())
    found = brokers.run(admin.committed(group))
    before = {name: found[name].offset if name in found else -1 for name in wanted}
    change = {name: end for name, end in wanted.items() if before[name] != end}
    if not change:
        return
    errors = brokers.run(admin.commit(group, change, before))
    for (topic, partition), error in errors.items():
        raise KafkaError(
            error.code,
            f"the records are there, but group {group} didn't take the offset of"
            f" {topic}-{partition}: {error.message}; it must have no members",
        )


class Translated(NamedTuple):
    """What became of groups: offsets that were committed, and groups that were left alone."""

    offsets: int
    left: int


def translate_groups(
    near: Brokers,
    far: Brokers,
    syncs: Syncs,
    copy_of: Callable[[str], str],
    but: str | None,
    told: set[str],
) -> Translated:
    """Commits for each group at the source, but for one, where it goes on in the copies.

    `told` are groups of which it was said before that they can't be translated; those of which it
    is said now come to it. Raises KafkaError, ConnectionError.
    """
    here, there = GroupAdmin(near.cluster()), GroupAdmin(far.cluster())
    done = left = 0
    for group in near.run(here.list_groups()):
        if group.id.startswith(_OURS) or group.id == but or group.type == "share":
            continue
        wanted = _translations(near.run(here.committed(group.id)), syncs, copy_of)
        if not wanted:
            continue
        found = far.run(there.committed(group.id))
        before = {name: found[name].offset if name in found else -1 for name in wanted}
        change = {name: each for name, each in wanted.items() if each.offset > before[name]}
        if not change:
            continue
        errors = far.run(there.commit(group.id, change, before))
        for (topic, number), error in errors.items():
            text = f"group {group.id!r}, {topic}-{number}: {error.message}"
            if error.code in _NOT_THERE:
                if group.id not in told:
                    _logger.warning("an offset can't be translated: %s", text)
                told.add(group.id)
            elif error.code not in _NOT_NOW:
                raise KafkaError(error.code, text)
        done += len(change) - len(errors)
        left += bool(errors)
    return Translated(done, left)


def _translations(
    committed: Mapping[Partition, CommittedOffset], syncs: Syncs, copy_of: Callable[[str], str]
) -> dict[Partition, OffsetAndMetadata]:
    found = {}
    for (topic, number), each in committed.items():
        offset = translated(syncs.get((topic, number), ()), each.offset)
        if offset is not None:
            found[copy_of(topic), number] = OffsetAndMetadata(offset, each.metadata)
    return found
