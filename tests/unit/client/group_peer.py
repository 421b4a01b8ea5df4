"""Scripted coordinators: of a group of one, and of one whose leader is another."""

from __future__ import annotations

from typing import Any

from kraftpy.client.group import encode_assignment
from kraftpy.client.offsets import EARLIEST, LATEST, Partition
from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.extensions import (
    ACCEPT_INDIVIDUAL_COMMIT_TAG,
    ACCEPT_RANGE_FETCH_TAG,
    NO,
    YES,
    is_set,
)
from kraftpy.protocol.key_shares import ALL_SLOTS

from .peer import HANG_UP, Peer, batch, fetch_response


class CoordinatorPeer(Peer):
    """A broker that coordinates a group of one; `codes` are error codes to answer first."""

    def __init__(self) -> None:
        super().__init__({"t": 1})
        self.versions |= {
            ApiKey.FIND_COORDINATOR: (0, 3),
            ApiKey.JOIN_GROUP: (2, 9),
            ApiKey.SYNC_GROUP: (0, 5),
            ApiKey.HEARTBEAT: (0, 4),
            ApiKey.LEAVE_GROUP: (3, 5),
            ApiKey.OFFSET_COMMIT: (2, 8),
        }
        self.codes: dict[ApiKey, list[int]] = {}
        self.generation = 0
        self.others: list[str] = []
        self.accepts_fetch = self.accepts_commit = False

    def _default(self, request: Any) -> Any:
        codes = self.codes.get(ApiKey(request.API_KEY))
        code = codes.pop(0) if codes else 0
        if code < -1:
            return HANG_UP
        return getattr(self, "_" + ApiKey(request.API_KEY).name.lower())(request, code)

    def _api_versions(self, request: Any, code: int = 0) -> Any:
        return super()._api_versions(request)

    def _metadata(self, request: Any, code: int = 0) -> Any:
        answer = super()._metadata(request)
        if is_set(request, ACCEPT_RANGE_FETCH_TAG):
            for topic in answer.topics:
                topic._tags = {ACCEPT_RANGE_FETCH_TAG: YES if self.accepts_fetch else NO}
        return answer

    def _find_coordinator(self, request: Any, code: int) -> Any:
        return messages.FindCoordinatorResponse(
            error_code=code, node_id=1, host="127.0.0.1", port=self.port
        )

    def _join_group(self, request: Any, code: int) -> Any:
        kinds = messages.JoinGroupResponse
        if not request.member_id:
            code = code or 79
        if code:
            return kinds(
                error_code=code, protocol_name="", leader="", member_id=request.member_id or "me"
            )
        self.generation += 1
        protocol = request.protocols[0]
        return kinds(
            generation_id=self.generation,
            protocol_type="consumer",
            protocol_name=protocol.name,
            leader=request.member_id,
            member_id=request.member_id,
            members=[
                kinds.JoinGroupResponseMember(member_id=member_id, metadata=protocol.metadata)
                for member_id in (request.member_id, *self.others)
            ],
            _tags=(
                {ACCEPT_INDIVIDUAL_COMMIT_TAG: YES if self.accepts_commit else NO}
                if is_set(request, ACCEPT_INDIVIDUAL_COMMIT_TAG)
                else None
            ),
        )

    def _sync_group(self, request: Any, code: int) -> Any:
        assignment = request.assignments[0].assignment if request.assignments else b""
        return messages.SyncGroupResponse(error_code=code, assignment=bytes(assignment))

    def _heartbeat(self, request: Any, code: int) -> Any:
        return messages.HeartbeatResponse(error_code=code)

    def _leave_group(self, request: Any, code: int) -> Any:
        return messages.LeaveGroupResponse(error_code=code)

    def _offset_commit(self, request: Any, code: int) -> Any:
        kinds = messages.OffsetCommitResponse
        partition = kinds.OffsetCommitResponsePartition(partition_index=0, error_code=code)
        topic = kinds.OffsetCommitResponseTopic(name="t", partitions=[partition])
        return kinds(topics=[topic])


class GroupPeer(CoordinatorPeer):
    """The same with another leader, who assigns what is `given`; it keeps records and offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.topics = {"t": 2}
        self.versions[ApiKey.OFFSET_FETCH] = (1, 7)
        self.given: list[Partition] = [("t", 0), ("t", 1)]
        self.records: dict[Partition, list[bytes]] = {("t", 0): [b"0", b"1", b"2"]}
        self.committed: dict[Partition, int] = {}

    def _join_group(self, request: Any, code: int) -> Any:
        answer = super()._join_group(request, code)
        answer.leader, answer.members = "another", []
        return answer

    def _sync_group(self, request: Any, code: int) -> Any:
        assignment = encode_assignment(dict.fromkeys(self.given, ALL_SLOTS))
        return messages.SyncGroupResponse(error_code=code, assignment=assignment)

    def _fetch(self, request: Any, code: int) -> Any:
        found = {}
        for topic in request.topics:
            for each in topic.partitions:
                name = (topic.topic, each.partition)
                values = self.records.get(name, [])[each.fetch_offset :]
                found[name] = batch(each.fetch_offset, *values) if values else b""
        return fetch_response(found)

    def _list_offsets(self, request: Any, code: int) -> Any:
        kinds = messages.ListOffsetsResponse
        topics = []
        for topic in request.topics:
            rows = []
            for each in topic.partitions:
                end = len(self.records.get((topic.name, each.partition_index), []))
                offset = {EARLIEST: 0, LATEST: end}[each.timestamp]
                rows.append(
                    kinds.ListOffsetsPartitionResponse(
                        partition_index=each.partition_index, offset=offset
                    )
                )
            topics.append(kinds.ListOffsetsTopicResponse(name=topic.name, partitions=rows))
        return kinds(topics=topics)

    def _offset_fetch(self, request: Any, code: int) -> Any:
        kinds = messages.OffsetFetchResponse
        topics = []
        for topic in request.topics:
            rows = [
                kinds.OffsetFetchResponsePartition(
                    number, committed_offset=self.committed.get((topic.name, number), -1)
                )
                for number in topic.partition_indexes
            ]
            topics.append(kinds.OffsetFetchResponseTopic(name=topic.name, partitions=rows))
        return kinds(topics=topics)

    def _offset_commit(self, request: Any, code: int) -> Any:
        kinds = messages.OffsetCommitResponse
        topics = []
        for topic in request.topics:
            rows = []
            for each in topic.partitions:
                self.committed[topic.name, each.partition_index] = each.committed_offset
                rows.append(kinds.OffsetCommitResponsePartition(each.partition_index, code))
            topics.append(kinds.OffsetCommitResponseTopic(name=topic.name, partitions=rows))
        return kinds(topics=topics)
