"""Which partitions a member of a share group may have to do with at this broker, and who else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kraftpy.core.leases.sessions import Key
from kraftpy.core.security.acls import Operation, Resource
from kraftpy.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker
    from kraftpy.server.network.dispatch import RequestContext
    from kraftpy.server.replication.partition import Partition


def led_partition(broker: Broker, ctx: RequestContext, key: Key) -> Partition:
    """The partition if it's led here, and the client may read the topic.

    Raises KafkaError: UNKNOWN_TOPIC_ID, TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION,
    NOT_LEADER_OR_FOLLOWER.
    """
    topic_id, index = key
    topic = broker.metadata.topics_by_id.get(topic_id)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    view = ctx.session.view
    if view is not None and not view.may(Operation.READ, Resource.TOPIC, topic.name):
        broker.audit.denied(view, Operation.READ, Resource.TOPIC, topic.name)
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return broker.led_partition(topic.name, index)
