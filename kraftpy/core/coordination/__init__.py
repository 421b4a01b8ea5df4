"""What the machines of all coordinators have in common.

`machine` is the contract between a machine and the runtime that drives it
(`kraftpy.server.coordination.runtime`).
"""

from kraftpy.core.coordination.codec import Codec, Loaded, plain_batch, plain_records
from kraftpy.core.coordination.effects import (
    PRIMARY,
    Committed,
    Effects,
    Failed,
    Outbox,
    Write,
    together,
)
from kraftpy.core.coordination.errors import TOO_LARGE, write_error
from kraftpy.core.coordination.machine import Machine
from kraftpy.core.coordination.partitioner import java_string_hash, partition_for

__all__ = [
    "PRIMARY",
    "TOO_LARGE",
    "Codec",
    "Committed",
    "Effects",
    "Failed",
    "Loaded",
    "Machine",
    "Outbox",
    "Write",
    "java_string_hash",
    "partition_for",
    "plain_batch",
    "plain_records",
    "together",
    "write_error",
]
