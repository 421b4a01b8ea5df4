"""Requests to share coordinators, of one share-partition each."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from typing import Any

from kraftpy.protocol import messages as m
from kraftpy.protocol.api import REQUEST_NAMES, ApiKey
from kraftpy.protocol.errors import ErrorCode as E
from tests.server.wire import Wire

GROUP = "g"
LATEST = {
    ApiKey.WRITE_SHARE_GROUP_STATE: 1,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: 1,
}

Batch = tuple[int, int, int, int]


def topic_id_of(wire: Wire, name: str) -> bytes:
    request = m.MetadataRequest
    answer = wire.call(ApiKey.METADATA, 12, request([request.MetadataRequestTopic(name=name)]))
    found: bytes = answer.topics[0].topic_id
    return found


def request_of(key: ApiKey, group: str, topic_id: bytes, *parts: Any) -> Any:
    """The request with these partitions of a topic."""
    kinds: Any = getattr(m, REQUEST_NAMES[key])
    (topic,) = (
        value for name, value in vars(kinds).items() if name.endswith(("StateData", "SummaryData"))
    )
    return kinds(group, [topic(topic_id, [kinds.PartitionData(*part) for part in parts])])


class Share:
    """A share-partition, as the broker behind `wire` keeps it."""

    def __init__(
        self, wire: Wire, topic_id: bytes, partition: int = 0, *, group: str = GROUP
    ) -> None:
        self.wire = wire
        self.group = group
        self.topic_id = topic_id
        self.partition = partition

    @property
    def key(self) -> str:
        topic_id = urlsafe_b64encode(self.topic_id).decode().rstrip("=")
        return f"{self.group}:{topic_id}:{self.partition}"

    def call(self, key: ApiKey, *fields: Any, version: int | None = None) -> Any:
        """What is said of it."""
        request = request_of(key, self.group, self.topic_id, (self.partition, *fields))
        used = LATEST.get(key, 0) if version is None else version
        answer = self.wire.call(key, used, request)
        (topic,) = answer.results
        (said,) = topic.partitions
        assert (topic.topic_id, said.partition) == (self.topic_id, self.partition)
        return said

    def find(self, *, key_type: int = 2, version: int = 6) -> Any:
        request = m.FindCoordinatorRequest(key_type=key_type, coordinator_keys=[self.key])
        (found,) = self.wire.call(ApiKey.FIND_COORDINATOR, version, request).coordinators
        return found

    def initialize(self, state_epoch: int = 0, start: int = -1) -> E:
        return E(self.call(ApiKey.INITIALIZE_SHARE_GROUP_STATE, state_epoch, start).error_code)

    def write(
        self,
        *batches: Batch,
        state_epoch: int = 0,
        leader_epoch: int = 0,
        start: int = 0,
        finished: int = 0,
        version: int = 1,
    ) -> E:
        made = [m.WriteShareGroupStateRequest.StateBatch(*batch) for batch in batches]
        fields = state_epoch, leader_epoch, start, finished, made
        said = self.call(ApiKey.WRITE_SHARE_GROUP_STATE, *fields, version=version)
        return E(said.error_code)

    def read(self, leader_epoch: int = 0) -> tuple[E, int, int, list[Batch]]:
        """Error, state epoch, start offset, batches."""
        said = self.call(ApiKey.READ_SHARE_GROUP_STATE, leader_epoch)
        batches = [
            (each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
            for each in said.state_batches
        ]
        return E(said.error_code), said.state_epoch, said.start_offset, batches

    def delete(self) -> E:
        return E(self.call(ApiKey.DELETE_SHARE_GROUP_STATE).error_code)

    def summary(self, version: int = 1) -> tuple[int, ...]:
        """State epoch, leader epoch, start offset, how many are finished."""
        said = self.call(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, -1, version=version)
        assert not said.error_code
        return said.state_epoch, said.leader_epoch, said.start_offset, said.delivery_complete_count
