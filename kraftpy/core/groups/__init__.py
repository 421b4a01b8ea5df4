"""Consumer groups and their offsets: the rules, without a clock or a network.

`GroupMachine` is one partition's coordinator; its module says how to drive it.
"""

from kraftpy.core.groups.codec import GroupCodec
from kraftpy.core.groups.config import ConsumerTimes, GroupConfig
from kraftpy.core.groups.effects import Effects, Write
from kraftpy.core.groups.machine import GroupMachine
from kraftpy.core.groups.membership import Client, new_member_id
from kraftpy.core.groups.memory import GroupMemory
from kraftpy.core.groups.offsets import OffsetRow, no_offset, refused_offset
from kraftpy.core.groups.records import (
    CommittedOffset,
    CoordinatorRecord,
    GroupRecord,
    GroupSnapshot,
    MemberSnapshot,
    OffsetRecord,
    decode_record,
    encode_record,
)

__all__ = [
    "Client",
    "CommittedOffset",
    "ConsumerTimes",
    "CoordinatorRecord",
    "Effects",
    "GroupCodec",
    "GroupConfig",
    "GroupMachine",
    "GroupMemory",
    "GroupRecord",
    "GroupSnapshot",
    "MemberSnapshot",
    "OffsetRecord",
    "OffsetRow",
    "Write",
    "decode_record",
    "encode_record",
    "new_member_id",
    "no_offset",
    "refused_offset",
]
