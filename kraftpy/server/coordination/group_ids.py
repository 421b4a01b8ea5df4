"""Which texts may be the id of a group."""

from __future__ import annotations

from kraftpy.core.groups.records import too_long
from kraftpy.protocol.errors import ErrorCode, KafkaError


def check_group_id(group_id: str, *, allow_empty: bool = False) -> str:
    """The group's id, if it may be one; raises KafkaError: INVALID_GROUP_ID.

    `allow_empty`: requests about offsets may name the group "", which Kafka keeps working for old
    clients.
    """
    if (not group_id and not allow_empty) or too_long(group_id):
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    return group_id
