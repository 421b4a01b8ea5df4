"""Requests that repeat things: each array of each request of the schema tables, up to a size, and
each text as long as that.

What stands in the other fields is what exists on the broker under test, by the names of the fields;
an API that is new gets its requests without a line here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from kraftpy.core.leases.state_records import ShareKey
from kraftpy.protocol import codec, messages, schema
from kraftpy.protocol.api import REQUEST_NAMES, ApiKey
from kraftpy.protocol.extensions import (
    OFFSET_RANGES_TAG,
    RANGES_MAX,
    SLICES_TAG,
    WAIT_FOR_STABLE_TAG,
    YES,
    encode_ranges,
    encode_slices,
)
from kraftpy.protocol.schema import ZERO_UUID, Field
from tests.server.wire import Wire

TOPIC, GROUP, MEMBERS, CONSUMERS, VICTIM = "many", "offsets", "members", "consumers", "victim"
SHARERS = "sharers"
NODE_ID = 1
PARTITIONS = 1_000
TRANSACTIONAL_IDS = 1_000
MEMBER_BYTES = 300 * 1024
QUOTAS = 5_000

# What asks about a group with members; what changes something, one that nothing else needs.
_GROUP_OF = {
    ApiKey.DESCRIBE_GROUPS: MEMBERS,
    ApiKey.CONSUMER_GROUP_DESCRIBE: CONSUMERS,
    ApiKey.DELETE_GROUPS: VICTIM,
    ApiKey.OFFSET_DELETE: VICTIM,
    ApiKey.LEAVE_GROUP: VICTIM,
    ApiKey.JOIN_GROUP: VICTIM,
    ApiKey.SYNC_GROUP: VICTIM,
    ApiKey.HEARTBEAT: VICTIM,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: VICTIM,
    ApiKey.SHARE_GROUP_HEARTBEAT: SHARERS,
    ApiKey.SHARE_GROUP_DESCRIBE: SHARERS,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: SHARERS,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: SHARERS,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: SHARERS,
    ApiKey.OFFSET_COMMIT: VICTIM,
    ApiKey.TXN_OFFSET_COMMIT: VICTIM,
}
# Each has a transactional id of its own, with a transaction that is open in all of TOPIC.
_IN_TRANSACTIONS = (
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.TXN_OFFSET_COMMIT,
)
_OF_QUOTAS = (ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.ALTER_CLIENT_QUOTAS)
_NUMBERS = {
    "replica_id": -1,
    "resource_type": 4,
    "timeout_ms": 1_000,
    "max_bytes": 1 << 20,
    "partition_max_bytes": 1 << 20,
    "num_partitions": -1,
    "replication_factor": -1,
    "session_timeout_ms": 10_000,
    "rebalance_timeout_ms": 10_000,
    "count": 2_000,
    "response_partition_limit": 2_000,
    "acks": 1,
    "endpoint_type": 1,
    "max_num_offsets": 1_000,
    "transaction_timeout_ms": 600_000,
    "coordinator_epoch": 1,
    "max_version_level": 2,
    "upgrade_type": 1,
}
_UNKNOWN_NUMBERS = ("epoch", "generation", "offset", "timestamp")
_TEXTS = {
    "protocol_type": "consumer",
    "configuration_keys": "log.dirs",
    "feature": "transaction.version",
    "transactional_ids": ApiKey.END_TXN.name,
}
# Of what gets quotas the names differ, and of these it's one.
_QUOTA_TEXTS = {"entity_type": "client-id", "key": "producer_byte_rate"}

_NOT = ("allow_auto_topic_creation", "verify_only")
_NOT_OF_QUOTAS = ("remove", "strict", "validate_only")

# Where texts have a 16-bit length.
TEXT_MAX_BYTES = 32_767


class Populated(NamedTuple):
    """What the broker has of the names in requests: the topic's id, and the producer ids of
    transactional ids. All epochs are 0.
    """

    topic_id: bytes
    producer_ids: Mapping[str, int]


class Case(NamedTuple):
    """One request; `what` says which array is repeated and how, or which text is long."""

    key: ApiKey
    version: int
    what: str
    request: Any


def cases(key: ApiKey, version: int, size_bytes: int, populated: Populated) -> Iterator[Case]:
    """Every array of the request filled to `size_bytes`, with one name and with others each time.

    And every array empty, and null if it may be, which often asks for everything; and every text as
    long as that, or as a text may be.
    """
    name = REQUEST_NAMES[key]
    table = schema.load(name)
    for path in _paths(table, name, version, ()):
        what = ".".join(field.name for field in path)
        for distinct in (False, True):
            make = _Maker(key, version, populated, path, distinct)
            one, two = make.size_bytes(1), make.size_bytes(2)
            count = max(1, (size_bytes - one) // (two - one) + 1)
            kind = "different" if distinct else "same"
            yield Case(key, version, f"{what} x {count:,} {kind}", make.request(count))
        if len(path) == 1:
            empty: list[Any] = [None, []] if path[0].nullable_in(version) else [[]]
            for value in empty:
                request = _Maker(key, version, populated, path, False).request(1)
                setattr(request, path[0].name, value)
                yield Case(key, version, f"{what} {'null' if value is None else 'empty'}", request)
    bare = _Maker(key, version, populated, (), False)
    yield from _claims(key, version, size_bytes, bare)
    if not any(_paths(table, name, version, ())):
        yield Case(key, version, "no array", bare.request(1))
    length = size_bytes if table.is_flexible(version) else min(size_bytes, TEXT_MAX_BYTES)
    for field in table.structs[name]:
        if field.exists_in(version) and field.type == "string" and not field.is_array:
            request = bare.request(1)
            setattr(request, field.name, "x" * length)
            yield Case(key, version, f"{field.name} of {length:,} bytes", request)


def _claims(key: ApiKey, version: int, size_bytes: int, bare: _Maker) -> Iterator[Case]:
    """As many claims of one partition as are in a commit: of all keys, or each of another slice."""
    if key not in (ApiKey.OFFSET_COMMIT, ApiKey.TXN_OFFSET_COMMIT):
        return
    many = range(1, min(size_bytes // 20, RANGES_MAX) + 1)
    slices = range(1, min(size_bytes // 40, RANGES_MAX) + 1)
    first = 1 << 40  # so that nothing is done by it
    ranges = encode_ranges([(first + 2 * n, first + 2 * n) for n in many])
    contents = [
        ("ranges", {OFFSET_RANGES_TAG: ranges}),
        ("slices", {SLICES_TAG: encode_slices([(n, n, [(first, first)]) for n in slices])}),
    ]
    if key is ApiKey.TXN_OFFSET_COMMIT:  # More than may wait.
        contents.append(("waiting", {OFFSET_RANGES_TAG: ranges, WAIT_FOR_STABLE_TAG: YES}))
    for what, tags in contents:
        request = bare.request(1)
        request.group_id = GROUP  # somebody has begun it
        ((partition,),) = [topic.partitions for topic in request.topics]
        partition.partition_index, partition.committed_offset, partition._tags = 0, -1, tags
        yield Case(key, version, f"claims: {what}", request)


def _paths(
    table: schema.Schema, struct: str, version: int, so_far: tuple[Field, ...]
) -> Iterator[tuple[Field, ...]]:
    for field in table.structs[struct]:
        if not field.exists_in(version):
            continue
        if field.is_array:
            yield (*so_far, field)
        if field.type in table.structs:
            yield from _paths(table, field.type, version, (*so_far, field))


class _Maker:
    def __init__(
        self,
        key: ApiKey,
        version: int,
        populated: Populated,
        path: tuple[Field, ...],
        distinct: bool,
    ) -> None:
        self._key = key
        self._version = version
        self._populated = populated
        self._path = path
        self._distinct = distinct
        self._name = REQUEST_NAMES[key]
        self._structs = schema.load(self._name).structs
        self._root = getattr(messages, self._name)

    def size_bytes(self, count: int) -> int:
        frame = codec.encode_request(self._key, self._version, 1, "c", self.request(count))
        return sum(map(len, frame))

    def request(self, count: int) -> Any:
        return self._struct(self._name, self._path, count, None)

    def _struct(self, struct: str, path: tuple[Field, ...], count: int, number: int | None) -> Any:
        """`number`: of the repeated element that this is in, if names are to differ."""
        made = self._root() if struct == self._name else getattr(self._root, struct)()
        fields = [f for f in self._structs[struct] if f.exists_in(self._version)]
        names = {field.name for field in fields}
        for field in fields:
            if path and field is path[0]:
                value = self._repeated(field, path[1:], count)
            elif field.is_array:
                value = [self._element(field, (), count, number)]
            elif field.type in self._structs:
                value = None if field.nullable_in(self._version) else made_struct(made, field)
            else:
                value = self._value(struct, field, number)
            setattr(made, field.name, value)
        if {"name", "topic_id"} <= names:
            made.topic_id = ZERO_UUID  # one of the two is to be given
        return made

    def _repeated(self, field: Field, rest: tuple[Field, ...], count: int) -> Any:
        if not field.is_array:
            return self._struct(field.type, rest, count, None)
        if rest:
            return [self._element(field, rest, count, None)]
        if not self._distinct:
            return [self._element(field, (), 1, None)] * count
        return [self._element(field, (), 1, number) for number in range(count)]

    def _element(
        self, field: Field, path: tuple[Field, ...], count: int, number: int | None
    ) -> Any:
        if field.type in self._structs:
            return self._struct(field.type, path, count, number)
        return self._value("", field._replace(nullable_from=None), number)

    def _value(self, struct: str, field: Field, number: int | None) -> Any:
        name = field.name
        if field.type == "string":
            return self._text(struct, field, number)
        if field.type == "uuid":
            topic_id = self._populated.topic_id
            return topic_id if number is None else (number + 1).to_bytes(16, "big")
        if field.type == "bool":
            return name not in _NOT and not (self._key in _OF_QUOTAS and name in _NOT_OF_QUOTAS)
        if field.type == "bytes":
            return b""
        if field.type in ("records", "float64"):
            return None if field.type == "records" else 1.0
        if name == "resource_type" and number is not None:
            return 2
        if self._key in _IN_TRANSACTIONS and name.endswith(("producer_id", "producer_epoch")):
            return self._producer(name, number)
        if name in _NUMBERS:
            return _NUMBERS[name]
        if "broker" in name or "replicas" in name:
            return NODE_ID if self._key is not ApiKey.UNREGISTER_BROKER else 99
        if "partition" in name or "index" in name:
            return number or 0
        return -1 if any(each in name for each in _UNKNOWN_NUMBERS) else 0

    def _producer(self, name: str, number: int | None) -> int:
        if name.endswith("producer_epoch"):
            return 0
        # A marker for a producer that nobody knows is written, too.
        missing = -1 if number is None else number + 1_000_000
        return self._populated.producer_ids.get(self._transactional_id(number), missing)

    def _transactional_id(self, number: int | None) -> str:
        return self._key.name if number is None else _name(number)

    def _text(self, struct: str, field: Field, number: int | None) -> str | None:
        name = field.name
        if self._key in _OF_QUOTAS and name in _QUOTA_TEXTS:
            return _QUOTA_TEXTS[name]
        if number is not None:
            return _name(number)
        if name.endswith("transactional_id") and self._key in _IN_TRANSACTIONS:
            return self._transactional_id(number)
        if ("group" in name and "instance" not in name) or name in ("key", "coordinator_keys"):
            return _GROUP_OF.get(self._key, GROUP)
        if "topic" in name or (name == "name" and "Topic" in struct):
            return TOPIC
        if name == "resource_name":
            return str(NODE_ID)
        if field.nullable_in(self._version):
            return None
        return _TEXTS.get(name, "")


def _name(number: int) -> str:
    return f"n{number:07d}"


def made_struct(made: Any, field: Field) -> Any:
    """What the message has there by itself."""
    return getattr(made, field.name)


@contextmanager
def populate(host: str, port: int) -> Iterator[Populated]:
    """Makes what the requests name. Members stay as long as the block does."""
    with Wire(host, port) as wire, Wire(host, port) as member:
        create = messages.CreateTopicsRequest
        topics = [create.CreatableTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=1)]
        (created,) = wire.call(ApiKey.CREATE_TOPICS, 7, create(topics, timeout_ms=30_000)).topics
        assert created.error_code == 0, created
        for group in (GROUP, VICTIM, MEMBERS, CONSUMERS):
            find = messages.FindCoordinatorRequest(coordinator_keys=[group])
            _until_ok(partial(_found, wire, find))
        share = messages.FindCoordinatorRequest(
            key_type=2,
            coordinator_keys=[ShareKey(GROUP, created.topic_id, 0).coordinator_key],
        )
        _until_ok(partial(_found, wire, share))
        _commit(wire)
        _join(member)
        _limit(wire)
        yield Populated(created.topic_id, _begin_transactions(wire))


def _until_ok(ask: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 30.0
    while (answer := ask()).error_code:
        assert time.monotonic() < deadline, answer
        time.sleep(0.05)
    return answer


def _found(wire: Wire, find: messages.FindCoordinatorRequest) -> Any:
    return wire.call(ApiKey.FIND_COORDINATOR, 6, find).coordinators[0]


def _commit(wire: Wire) -> None:
    kinds = messages.OffsetCommitRequest
    offsets = [
        kinds.OffsetCommitRequestPartition(index, committed_offset=1, committed_metadata="m")
        for index in range(PARTITIONS)
    ]
    request = kinds(GROUP, topics=[kinds.OffsetCommitRequestTopic(name=TOPIC, partitions=offsets)])
    _until_ok(lambda: wire.call(ApiKey.OFFSET_COMMIT, 8, request).topics[0].partitions[0])


def _limit(wire: Wire) -> None:
    kinds = messages.AlterClientQuotasRequest
    entries = [
        kinds.EntryData(
            [kinds.EntityData("client-id", f"limited-{number}")],
            [kinds.OpData("producer_byte_rate", 1e9, False)],
        )
        for number in range(QUOTAS)
    ]
    answer = wire.call(ApiKey.ALTER_CLIENT_QUOTAS, 1, kinds(entries, False))
    assert {each.error_code for each in answer.entries} == {0}


def _join(wire: Wire) -> None:
    """A classic group with a member that says much of itself, and one of the new kind."""
    join = messages.JoinGroupRequest
    protocol = join.JoinGroupRequestProtocol("range", bytes(MEMBER_BYTES))
    request = join(
        MEMBERS,
        session_timeout_ms=300_000,
        rebalance_timeout_ms=1_000,
        protocol_type="consumer",
        protocols=[protocol],
    )
    joined = _until_ok(lambda: wire.call(ApiKey.JOIN_GROUP, 3, request))
    sync = messages.SyncGroupRequest(MEMBERS, joined.generation_id, joined.member_id)
    sync.assignments = [
        messages.SyncGroupRequest.SyncGroupRequestAssignment(joined.member_id, bytes(MEMBER_BYTES))
    ]
    _until_ok(lambda: wire.call(ApiKey.SYNC_GROUP, 3, sync))
    beat = messages.ConsumerGroupHeartbeatRequest(
        group_id=CONSUMERS,
        member_id="AAAAAAAAAAAAAAAAAAAAAA",
        rebalance_timeout_ms=300_000,
        subscribed_topic_names=[TOPIC],
        topic_partitions=[],
    )
    _until_ok(lambda: wire.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, beat))


def _begin_transactions(wire: Wire) -> dict[str, int]:
    """Transactional ids with their producers; those of APIs have a transaction open."""
    find = messages.FindCoordinatorRequest(key_type=1, coordinator_keys=[ApiKey.END_TXN.name])
    _until_ok(partial(_found, wire, find))
    names = [key.name for key in _IN_TRANSACTIONS] + list(map(_name, range(TRANSACTIONAL_IDS)))
    begun = {name: _begin(wire, name) for name in names}
    add = messages.AddPartitionsToTxnRequest
    topic = add.AddPartitionsToTxnTopic(TOPIC, list(range(PARTITIONS)))
    for key in _IN_TRANSACTIONS:
        added = wire.call(
            ApiKey.ADD_PARTITIONS_TO_TXN, 3, add([], key.name, begun[key.name], 0, [topic])
        ).results_by_topic_v3_and_below[0]
        assert not any(each.partition_error_code for each in added.results_by_partition)
    return begun


def _begin(wire: Wire, name: str) -> int:
    request = messages.InitProducerIdRequest(name, 600_000)
    answer = _until_ok(lambda: wire.call(ApiKey.INIT_PRODUCER_ID, 4, request))
    return int(answer.producer_id)
