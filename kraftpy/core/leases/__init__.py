"""Leases of single records: whose a record is, how often it was delivered, and what became of it.

Two doors lead here: share groups (KIP-932), and the cooperative fetch of seed 001.

* `runs`: the offsets of a partition as runs of equal state, in columns
* `table`: the leases of a group on a partition, at the partition's leader
* `terms`: what it is told and tells
* `dealing`, `judging`: what of it a member gets, and whether what a member says of it may be
* `numbers`: what all tables of a broker count
* `claimed`: the same for a cooperative group, whose claims say what is done
* `found`: what of the log there is to lease
* `sessions`: which partitions a member of a share group fetches from a broker
* `state`: what is kept of them by the share coordinator, one partition of `__share_group_state`
* `share_state`: what its records add up to
* `state_memory`: what that takes in memory
* `state_records`: those records, in Kafka's formats
"""

from kraftpy.core.leases.claimed import ClaimedTable
from kraftpy.core.leases.runs import RecordState, Run
from kraftpy.core.leases.table import LeaseTable
from kraftpy.core.leases.terms import (
    Acknowledgement,
    Acquired,
    Change,
    Demand,
    LeaseLimits,
    ReadBatch,
    StateBatch,
)

__all__ = [
    "Acknowledgement",
    "Acquired",
    "Change",
    "ClaimedTable",
    "Demand",
    "LeaseLimits",
    "LeaseTable",
    "ReadBatch",
    "RecordState",
    "Run",
    "StateBatch",
]
