"""The features of the cluster (KIP-584): what clients and tools may ask for, and at which level.

They are those of Apache Kafka 4.4 that are true here: `metadata.version` names the release whose
requests are answered, `group.version` groups whose coordinator assigns partitions (KIP-848),
`eligible.leader.replicas.version` leaders that are out of sync but have all records (KIP-966). Each
has one level, so none can be raised or lowered. `kraftpy.metadata.level` is kraftpy's own: what may
be in the metadata (`kraftpy.core.metadata.levels`); an operator raises it, and it never falls.
"""

from __future__ import annotations

LEVELS = {
    "eligible.leader.replicas.version": 1,
    "group.version": 1,
    "metadata.version": 33,
}
