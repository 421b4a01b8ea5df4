"""What kraftpy adds to Kafka's messages.

Tagged fields have numbers from 10000 up and are in flexible versions only. A broker or client that
does not know them skips them (KIP-482).
"""

from __future__ import annotations

# OffsetCommitRequestPartition, version 8 and later: commit only if the committed offset is this
# one, -1 if there is none; eight bytes, big-endian. Refused with UNEXPECTED_OFFSET.
EXPECTED_OFFSET_TAG = 10_000

# The client id of requests that one broker passes on to another, which must not pass them on again.
FORWARDED_CLIENT_ID = "kraftpy-forwarded"
