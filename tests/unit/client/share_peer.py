"""A scripted broker that leads every partition of a share group, and coordinates it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey

from .peer import Peer, batch

Run = tuple[int, int, int]
TOPIC_ID = b"t" * 16
SHARE_APIS = {
    ApiKey.FIND_COORDINATOR: (1, 3),
    ApiKey.SHARE_GROUP_HEARTBEAT: (1, 1),
    ApiKey.SHARE_FETCH: (1, 2),
    ApiKey.SHARE_ACKNOWLEDGE: (1, 2),
}


class SharePeer(Peer):
    """Leases what `leases` has next, an entry for each fetch: records, and runs of offsets.

    `said` is what was acknowledged, by fetches too; `refuse` the errors of acknowledgements of
    partitions.
    """

    def __init__(self, partitions: int = 1) -> None:
        super().__init__({"t": partitions})
        self.versions |= SHARE_APIS
        self.leases: list[tuple[bytes, Sequence[Run]]] = []
        self.refuse: dict[int, int] = {}
        self.said: list[tuple[int, int, int]] = []
        self.lock_ms = 30_000
        self.member_epoch = 1
        self.leader = (1, 0)
        self.endpoints: list[Any] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        await super().serve(reader, writer)

    def hang_up(self) -> None:
        """Closes all connections, though nothing is asked."""
        for writer in self._writers:
            writer.close()

    def topic_metadata(self, name: str, leader: int = 1) -> Any:
        told = super().topic_metadata(name, self.leader[0])
        told.topic_id = TOPIC_ID
        for partition in told.partitions:
            partition.leader_epoch = self.leader[1]
        return told

    def _find_coordinator(self, request: Any) -> Any:
        return messages.FindCoordinatorResponse(node_id=1, host="127.0.0.1", port=self.port)

    def _share_group_heartbeat(self, request: Any) -> Any:
        kinds = messages.ShareGroupHeartbeatResponse
        numbers = list(range(self.topics["t"]))
        return kinds(
            member_id=request.member_id,
            member_epoch=self.member_epoch,
            heartbeat_interval_ms=20,
            assignment=kinds.Assignment([kinds.TopicPartitions(TOPIC_ID, numbers)]),
        )

    def share_fetch(
        self,
        request: Any,
        leased: Mapping[int, tuple[bytes, Sequence[Run]]],
        errors: Mapping[int, int] | None = None,
    ) -> Any:
        """An answer that has these records of partitions, and these errors."""
        said = self._note(request)
        kinds = messages.ShareFetchResponse
        errors = errors or {}
        partitions = []
        for index in sorted({*leased, *errors, *said}):
            records, runs = leased.get(index, (b"", ()))
            partitions.append(
                kinds.PartitionData(
                    index,
                    errors.get(index, 0),
                    acknowledge_error_code=self.refuse.get(index, 0) if index in said else 0,
                    current_leader=kinds.LeaderIdAndEpoch(*self.leader),
                    records=records,
                    acquired_records=[kinds.AcquiredRecords(*run) for run in runs],
                )
            )
        return kinds(
            acquisition_lock_timeout_ms=self.lock_ms,
            responses=[kinds.ShareFetchableTopicResponse(TOPIC_ID, partitions)],
            node_endpoints=self.endpoints,
        )

    def _share_fetch(self, request: Any) -> Any:
        return self.share_fetch(request, {0: self.leases.pop(0)} if self.leases else {})

    def _share_acknowledge(self, request: Any) -> Any:
        kinds = messages.ShareAcknowledgeResponse
        partitions = [
            kinds.PartitionData(index, self.refuse.get(index, 0)) for index in self._note(request)
        ]
        topics = [kinds.ShareAcknowledgeTopicResponse(TOPIC_ID, partitions)]
        return kinds(acquisition_lock_timeout_ms=self.lock_ms, responses=topics)

    def _note(self, request: Any) -> list[int]:
        """Notes what a request acknowledges; of which partitions."""
        found = []
        for topic in request.topics:
            for partition in topic.partitions:
                for each in partition.acknowledgement_batches:
                    (what,) = each.acknowledge_types
                    self.said.append((each.first_offset, each.last_offset, what))
                if partition.acknowledgement_batches:
                    found.append(partition.partition_index)
        return found


def failing(code: int, peer: SharePeer, key: ApiKey, times: int = 1) -> None:
    """The next requests of this kind have this error as a whole."""
    left = [code] * times
    usual: Callable[[Any], Any] = peer._default
    response = {
        ApiKey.SHARE_FETCH: messages.ShareFetchResponse,
        ApiKey.SHARE_ACKNOWLEDGE: messages.ShareAcknowledgeResponse,
        ApiKey.SHARE_GROUP_HEARTBEAT: messages.ShareGroupHeartbeatResponse,
    }[key]
    peer.answers[key] = lambda request: response(error_code=left.pop()) if left else usual(request)


def numbers(first: int, count: int) -> bytes:
    """A batch of records that are their offsets."""
    return batch(first, *(b"%d" % number for number in range(first, first + count)))
