"""The replicated metadata as frames, for the page: brokers and topics as this process has them.

A node shows this without asking anybody over the network: it is there while the broker starts, on a
node that is a controller alone, and when the quorum has lost its majority.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kraftpy.core.metadata.partition_changes import rules_of
from kraftpy.metrics.channel import Frame
from kraftpy.metrics.frames import BROKERS, ROWS_MAX, TOPICS, pieces

if TYPE_CHECKING:
    from kraftpy.core.metadata import Broker, MetadataState, PartitionState


def metadata_frames(state: MetadataState) -> Iterator[Frame]:
    """All brokers and topics; what changes between two frames is seen old or new."""
    for brokers in pieces(list(state.brokers.values())):
        yield [BROKERS, [_broker(each) for each in brokers]]
    together: list[list[Any]] = []
    rows_together = 0
    for topic in list(state.topics.values()):
        min_isr = rules_of(state, topic.name).min_isr
        for partitions in pieces(list(topic.partitions.items())):
            rows = [_partition(index, partition) for index, partition in partitions]
            if rows_together + len(rows) > ROWS_MAX:
                yield [TOPICS, together]
                together, rows_together = [], 0
            together.append([topic.name, topic.internal, min_isr, rows])
            rows_together += len(rows)
    yield [TOPICS, together]


def _broker(broker: Broker) -> list[Any]:
    endpoint = broker.endpoints[0]
    return [
        broker.id,
        broker.epoch,
        endpoint.host,
        endpoint.port,
        broker.rack,
        broker.fenced,
        broker.in_controlled_shutdown,
    ]


def _partition(index: int, partition: PartitionState) -> list[Any]:
    return [
        index,
        partition.leader,
        partition.leader_epoch,
        partition.replicas,
        partition.isr,
        partition.elr,
        partition.adding,
        partition.removing,
    ]
