"""The topic that a job writes to: which one it is, and whether it will keep what it is given.

A topic whose brokers stamp records themselves (message.timestamp.type=LogAppendTime) is refused:
records would get another time. One that isn't there, or not any more, isn't made by sending to it.
One that deletes records by age takes them, so that is a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from kraftpy.client.admin import Admin
from kraftpy.client.cluster import Cluster, Retry
from kraftpy.pipeline.manifests import TopicIdentity
from kraftpy.protocol import messages
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.spark.brokers import Brokers
from kraftpy.spark.positions import OptionError
from kraftpy.spark.settings import WriteSettings, write_settings

_logger = logging.getLogger("kraftpy.pipeline")


@dataclass(frozen=True, slots=True)
class TargetTopic:
    """What a job has to know of its target, as of when it was asked for."""

    identity: TopicIdentity
    partitions: int
    retention_ms: int | None
    """None: records aren't deleted by age."""


class Target:
    """A topic, the brokers that have it, and the sink's options for it.

    Without a name it is all topics there: rows say in their column `topic` which.
    """

    def __init__(self, bootstrap: str, topic: str, options: Mapping[str, str]) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.options = {
            **options,
            "kafka.bootstrap.servers": bootstrap,
            "topic": topic,
            "keepTimestamps": "true",
            "createTopics": "false",
        }

    def of(self, topic: str) -> Target:
        """A topic at the same brokers."""
        return Target(self.bootstrap, topic, self.options)

    def settings(self) -> WriteSettings:
        """The sink's settings. Raises OptionError, also for those that may lose records."""
        settings = write_settings(self.options, by_topic=not self.topic)
        if settings.producer["acks"] != -1:
            raise OptionError("option kafka.acks has to be all: else what a broker loses is lost")
        if settings.job_id is not None:
            raise OptionError("option jobId is not for a pipeline, which names what it does itself")
        return settings

    def brokers(self, *, patiently: bool = False) -> Brokers:
        """The cluster, for the driver's questions; `patiently`: for who has reached it before."""
        client = self.settings().client
        return Brokers(client.patient() if patiently else client)

    def cluster_id(self, brokers: Brokers) -> str:
        """Which cluster it is, whether or not the topic is there."""
        brokers.partitions([self.topic])
        return brokers.cluster().cluster_id or ""

    def find(self, brokers: Brokers) -> TargetTopic | None:
        """The topic as it is now, None if there is none. Raises OptionError as `describe`."""
        if self.topic not in brokers.partitions([self.topic]):
            return None
        cluster = brokers.cluster()
        admin = Admin(cluster)
        found = brokers.run(admin.describe_configs(self.topic))
        configs = {each.name: each.value or "" for each in found}
        if configs.get("message.timestamp.type") == "LogAppendTime":
            raise OptionError(
                f"topic {self.topic} at {self.bootstrap} gives records the time of their arrival:"
                f" to keep their own, type `kraftpy topic alter {self.topic} -b {self.bootstrap} -c"
                " message.timestamp.type=CreateTime`"
            )
        retention_ms = int(configs.get("retention.ms") or -1)
        deletes = "delete" in configs.get("cleanup.policy", "delete") and retention_ms >= 0
        info = cluster.topics[self.topic]
        return TargetTopic(
            identity=TopicIdentity(cluster.cluster_id or "", info.id.hex()),
            partitions=len(info.partitions),
            retention_ms=retention_ms if deletes else None,
        )

    def describe(self, brokers: Brokers) -> TargetTopic:
        """The topic as it is now. Raises OptionError if there is none that keeps timestamps."""
        found = self.find(brokers)
        if found is None:
            raise OptionError(
                f"there is no topic {self.topic} at {self.bootstrap}: make it with"
                f" `kraftpy topic create {self.topic} -b {self.bootstrap}`"
            )
        return found

    def warn_of_age(self, found: TargetTopic, oldest_ms: int, now_ms: int) -> None:
        """Says if records of this age are going to be deleted soon."""
        if found.retention_ms is not None and 0 <= oldest_ms < now_ms - found.retention_ms:
            _logger.warning(
                "some records are older than %s keeps them (retention.ms=%d): its brokers will"
                " delete them; to keep them, type `kraftpy topic alter %s -b %s -c"
                " retention.ms=-1` first",
                self.topic,
                found.retention_ms,
                self.topic,
                self.bootstrap,
            )

    def create(self, brokers: Brokers, partitions: int, configs: Mapping[str, str]) -> None:
        """Makes the topic, unless somebody else has. Raises KafkaError."""
        admin = Admin(brokers.cluster())
        try:
            brokers.run(
                admin.create_topic(self.topic, partitions=partitions, configs=dict(configs))
            )
        except KafkaError as error:
            if error.code == ErrorCode.INVALID_CONFIG:
                raise KafkaError(
                    error.code,
                    f"{self.bootstrap} can't make topic {self.topic} with the settings of the"
                    f" source ({error.message}): make it with `kraftpy topic create {self.topic} -b"
                    f" {self.bootstrap} -p {partitions}`",
                ) from error
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise

    def grow(self, brokers: Brokers, partitions: int) -> None:
        """Gives the topic as many partitions, unless it has them; returns when brokers know it.

        Raises KafkaError, ConnectionError.
        """
        admin = Admin(brokers.cluster())
        there = brokers.partitions([self.topic]).get(self.topic)
        if there is not None and len(there) < partitions:
            brokers.run(admin.create_partitions(self.topic, partitions))
        self.await_known(brokers, partitions)

    def await_known(self, brokers: Brokers, partitions: int) -> None:
        """Returns when all brokers know the topic with as many partitions: a task may ask any.

        Raises KafkaError, ConnectionError.
        """
        brokers.run(_known_everywhere(brokers.cluster(), self.topic, partitions))


async def _known_everywhere(cluster: Cluster, topic: str, partitions: int) -> None:
    """Waits until each broker that answers lists the partitions."""
    kinds = messages.MetadataRequest
    request = kinds(
        topics=[kinds.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
    )
    retry = Retry(cluster.request_timeout_ms)
    await cluster.refresh([topic])
    for node_id in list(cluster.brokers):
        while True:
            try:
                response = await cluster.request(request, node_id=node_id)
            except ConnectionError:
                break
            (found,) = response.topics
            if not found.error_code and len(found.partitions) >= partitions:
                break
            await retry.wait(
                KafkaError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"broker {node_id} doesn't know {partitions} partitions of topic {topic} yet",
                )
            )
