"""What changes of brokers and topics look like as events; those of partitions:
`replication.leader_changes`.

Every broker tells of all of them, since each follows the whole metadata: so any node's page and log
shows what happened to the cluster.
"""

from __future__ import annotations

import logging
from logging import INFO, WARNING

from kraftpy.core.metadata import Broker, FeatureChanged, LevelRaised, Topic
from kraftpy.events import emit

log = logging.getLogger(__name__)


def tell_topic_created(topic: Topic) -> None:
    """The topic is there."""
    count, replicas = len(topic.partitions), len(topic.partitions[0].replicas)
    emit(log, INFO, "topic-created", topic=topic.name, partitions=count, replication=replicas)


def tell_topic_deleted(topic: Topic) -> None:
    """The topic is gone."""
    emit(log, INFO, "topic-deleted", topic=topic.name, partitions=len(topic.partitions))


def tell_broker(old: Broker | None, new: Broker | None) -> None:
    """A broker's record has changed; one of the two is there."""
    if new is None:
        assert old is not None
        emit(log, INFO, "broker-unregistered", broker=old.id, epoch=old.epoch)
    elif old is None or old.epoch != new.epoch:
        emit(log, INFO, "broker-registered", broker=new.id, epoch=new.epoch, rack=new.rack)
    elif new.fenced and not old.fenced:
        level = INFO if old.in_controlled_shutdown else WARNING
        emit(log, level, "broker-fenced", broker=new.id, epoch=new.epoch)
    elif old.fenced and not new.fenced:
        emit(log, INFO, "broker-unfenced", broker=new.id, epoch=new.epoch)
    elif new.in_controlled_shutdown and not old.in_controlled_shutdown:
        emit(log, INFO, "broker-shutting-down", broker=new.id, epoch=new.epoch)


def tell_level(change: LevelRaised | FeatureChanged) -> None:
    """The metadata, or a feature, has another level."""
    if isinstance(change, LevelRaised):
        log.info("the metadata has level %d now", change.level)
    else:
        log.info("the feature %s has level %d now", change.name, change.new)
