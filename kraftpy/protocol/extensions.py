"""What kraftpy adds to Kafka's messages.

Tagged fields have numbers from 10000 up and are in flexible versions only. A broker or client that
does not know them skips them (KIP-482).
"""

from __future__ import annotations

from kraftpy.protocol.message import Message

# OffsetCommitRequestPartition, version 8 and later: commit only if the committed offset is this
# one, -1 if there is none; eight bytes, big-endian. Refused with UNEXPECTED_OFFSET.
EXPECTED_OFFSET_TAG = 10_000

# OffsetCommitRequest, version 8 and later: if one partition is refused, no offset is committed, and
# the others are answered with OPERATION_NOT_ATTEMPTED. NO allows some to be committed and some not,
# as in Kafka; without the tag that is so unless a partition has EXPECTED_OFFSET_TAG.
ALL_OR_NONE_TAG = 10_000

# DeleteTopicsRequest, version 4 and later: topics of the brokers' own are to be deleted, too.
FORCE_INTERNAL_TAG = 10_000

# TransactionLogValue, a record of `__transaction_state`: the epoch that the producer had before, an
# int16. Kafka forgets it with the coordinator (KAFKA-20357).
LAST_PRODUCER_EPOCH_TAG = 10_000
# The same: nothing but zeros, in the place of what the end of the transaction will have more.
ROOM_TAG = 10_001

# The client id of requests that one broker passes on to another, which must not pass them on again.
FORWARDED_CLIENT_ID = "kraftpy-forwarded"

# The feature (KIP-584) that says what may be in the metadata, as all nodes know it.
METADATA_LEVEL_FEATURE = "kraftpy.metadata.level"

YES, NO = b"\1", b"\0"
"""The content of a tagged field that is a flag."""


def is_set(message: Message, tag: int) -> bool:
    """Whether the message has this flag."""
    return message._tags is not None and message._tags.get(tag) == YES
