"""Members of share groups in raw requests: what they fetch, and what they say of it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.records import build_batch, iter_records, split_batches
from kraftpy.storage.checkpoints import uuid_to_text
from tests.server.wire import Wire, produce

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
EARLIEST = 0
KEPT_WITHIN_S = 20.0

_groups = (f"shares-{number}" for number in itertools.count())

Partition = tuple[bytes, int]
Said = dict[Partition, Sequence[tuple[int, int, Sequence[int]]]]


class Got(NamedTuple):
    """What a fetch got of a partition: the runs (first, last, deliveries), and its errors."""

    runs: list[tuple[int, int, int]]
    error: int
    acknowledge_error: int
    records: bytes

    @property
    def values(self) -> list[bytes]:
        """The values of the records that are the member's."""
        offsets = {at for first, last, _ in self.runs for at in range(first, last + 1)}
        return [
            bytes(record.value or b"")
            for at, _ in split_batches(self.records)
            for record in iter_records(self.records, at)
            if record.offset in offsets
        ]


class Member:
    """A member with its session; `epoch` is that of its next request."""

    def __init__(self, wire: Wire, group: str, name: str = "ann", *, version: int = 2) -> None:
        self.wire = wire
        self.group = group
        self.name = name
        self.version = version
        self.epoch = 0
        self.lock_ms = 0

    def fetch(
        self,
        *partitions: Partition,
        say: Said | None = None,
        forget: Iterable[Partition] = (),
        most: int = 500,
        wait_ms: int = 0,
        batch_size: int = 500,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        mode: int = 0,
        error: ErrorCode = ErrorCode.NONE,
    ) -> dict[Partition, Got]:
        """What comes of a fetch in the session, which has these partitions then, too."""
        self.send_fetch(
            *partitions,
            say=say,
            forget=forget,
            most=most,
            wait_ms=wait_ms,
            batch_size=batch_size,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            mode=mode,
        )
        return self.receive_fetch(error)

    def send_fetch(
        self,
        *partitions: Partition,
        say: Said | None = None,
        forget: Iterable[Partition] = (),
        most: int = 500,
        wait_ms: int = 0,
        batch_size: int = 500,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        mode: int = 0,
    ) -> None:
        kinds = messages.ShareFetchRequest
        self.wire.send(
            ApiKey.SHARE_FETCH,
            self.version,
            kinds(
                self.group,
                self.name,
                self.epoch,
                wait_ms,
                min_bytes,
                max_bytes,
                most,
                batch_size,
                mode,
                topics=[
                    kinds.FetchTopic(
                        topic,
                        [kinds.FetchPartition(index, _batches(kinds, say, (topic, index)))],
                    )
                    for topic, index in dict.fromkeys((*partitions, *(say or ())))
                ],
                forgotten_topics_data=[
                    kinds.ForgottenTopic(topic, [index]) for topic, index in forget
                ],
            ),
        )

    def receive_fetch(self, error: ErrorCode = ErrorCode.NONE) -> dict[Partition, Got]:
        _, answer = self.wire.receive(ApiKey.SHARE_FETCH, self.version)
        assert answer.error_code == error, (answer.error_code, answer.error_message)
        if not error:
            self.epoch += 1
        self.lock_ms = answer.acquisition_lock_timeout_ms
        return {
            (topic.topic_id, each.partition_index): Got(
                [
                    (run.first_offset, run.last_offset, run.delivery_count)
                    for run in each.acquired_records
                ],
                each.error_code,
                each.acknowledge_error_code,
                bytes(each.records),
            )
            for topic in answer.responses
            for each in topic.partitions
        }

    def acknowledge(
        self, say: Said, *, error: ErrorCode = ErrorCode.NONE, renew: bool = False
    ) -> dict[Partition, int]:
        """The errors of the partitions."""
        kinds = messages.ShareAcknowledgeRequest
        answer = self.wire.call(
            ApiKey.SHARE_ACKNOWLEDGE,
            self.version,
            kinds(
                self.group,
                self.name,
                self.epoch,
                renew,
                [
                    kinds.AcknowledgeTopic(
                        topic,
                        [kinds.AcknowledgePartition(index, _batches(kinds, say, (topic, index)))],
                    )
                    for topic, index in say
                ],
            ),
        )
        assert answer.error_code == error, (answer.error_code, answer.error_message)
        if not error:
            self.epoch += 1
        return {
            (topic.topic_id, each.partition_index): each.error_code
            for topic in answer.responses
            for each in topic.partitions
        }


class Group:
    """A new group that begins at the start of a new topic."""

    def __init__(self, wire: Wire, topic: str, partitions: int = 1) -> None:
        self.wire = wire
        self.topic = topic
        self.name = next(_groups)
        id_ = topic_id(wire, topic)
        self.partitions: list[Partition] = [(id_, index) for index in range(partitions)]
        begin(wire, self.name, *self.partitions)

    @property
    def partition(self) -> Partition:
        return self.partitions[0]

    def append(self, *names: str, partition: int = 0) -> None:
        """One batch."""
        answer = produce(self.wire, self.topic, values(*names), partition=partition, acks=-1)
        assert answer.error_code == 0

    def member(self, name: str = "ann", *, wire: Wire | None = None, version: int = 2) -> Member:
        return Member(wire or self.wire, self.name, name, version=version)


def values(*names: str) -> bytes:
    return build_batch([(1, None, name.encode(), []) for name in names])


def _batches(kinds: Any, say: Said | None, partition: Partition) -> list[Any]:
    return [
        kinds.AcknowledgementBatch(first, last, list(types))
        for first, last, types in (say or {}).get(partition, ())
    ]


def begin(
    wire: Wire, group: str, *partitions: Partition, start: int = EARLIEST, state_epoch: int = 0
) -> None:
    """Has the state of a group's partitions kept, at its coordinators."""
    for each in partitions:
        _until(partial(_begun, wire, group, each, start, state_epoch))


def _until(attempt: Callable[[], int]) -> None:
    deadline = time.monotonic() + KEPT_WITHIN_S
    while error := attempt():
        assert time.monotonic() < deadline, error
        time.sleep(0.02)


def _begun(wire: Wire, group: str, partition: Partition, start: int, state_epoch: int) -> int:
    topic, index = partition
    find = messages.FindCoordinatorRequest(
        key_type=2, coordinator_keys=[f"{group}:{uuid_to_text(topic)}:{index}"]
    )
    (found,) = wire.call(ApiKey.FIND_COORDINATOR, 6, find).coordinators
    if found.error_code:
        return int(found.error_code)
    kinds = messages.InitializeShareGroupStateRequest
    data = kinds.InitializeStateData(topic, [kinds.PartitionData(index, state_epoch, start)])
    with Wire(found.host, found.port) as there:
        answer = there.call(ApiKey.INITIALIZE_SHARE_GROUP_STATE, 0, kinds(group, [data]))
    return int(answer.results[0].partitions[0].error_code)


def topic_id(wire: Wire, name: str) -> bytes:
    """The topic's id."""
    kinds = messages.MetadataRequest
    answer = wire.call(ApiKey.METADATA, 12, kinds([kinds.MetadataRequestTopic(name=name)], False))
    found: bytes = answer.topics[0].topic_id
    return found
