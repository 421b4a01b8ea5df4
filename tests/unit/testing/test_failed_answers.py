"""The answers to requests that fail: of every API and version, for all that they name."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given

from kraftpy.protocol import messages, schema
from kraftpy.protocol.api import ADVERTISED, REQUEST_NAMES, RESPONSE_NAMES, ApiKey
from kraftpy.protocol.codec import decode_response, encode_response
from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing.requests import answers, topics
from tests.protocol.random_messages import SEEDS, RandomMessages, examples

ERROR = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
ORDERS, BILLS = "orders", "bills"
IDS = {ORDERS: b"o" * 16, BILLS: b"b" * 16}
NAMES = {topic_id: name for name, topic_id in IDS.items()}
VERSIONS = {
    key: range(max(low, schema.load(REQUEST_NAMES[key]).first_version), high + 1)
    for key, (low, high) in ADVERTISED.items()
    if not answers.needs_the_brokers(key)
}
# Requests that name topics, and whose answers have one error for all.
ONE_ERROR = {
    ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.DESCRIBE_LOG_DIRS, ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ApiKey.SHARE_GROUP_HEARTBEAT,
}  # fmt: skip
WITH_TOPICS = {
    ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.METADATA, ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH, ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.DELETE_RECORDS,
    ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.WRITE_TXN_MARKERS,
    ApiKey.TXN_OFFSET_COMMIT, ApiKey.DESCRIBE_CONFIGS, ApiKey.ALTER_CONFIGS,
    ApiKey.ALTER_REPLICA_LOG_DIRS, ApiKey.DESCRIBE_LOG_DIRS, ApiKey.CREATE_PARTITIONS,
    ApiKey.ELECT_LEADERS, ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS, ApiKey.OFFSET_DELETE, ApiKey.DESCRIBE_QUORUM,
    ApiKey.DESCRIBE_PRODUCERS, ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    ApiKey.SHARE_GROUP_HEARTBEAT, ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, ApiKey.ALTER_SHARE_GROUP_OFFSETS,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS, ApiKey.INITIALIZE_SHARE_GROUP_STATE,
    ApiKey.READ_SHARE_GROUP_STATE, ApiKey.WRITE_SHARE_GROUP_STATE,
    ApiKey.DELETE_SHARE_GROUP_STATE, ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
}  # fmt: skip


class Filled:
    """A request with two of everything; its topics, where it has any, are ORDERS and BILLS."""

    def __init__(self, key: ApiKey, version: int) -> None:
        self._schema = schema.load(REQUEST_NAMES[key])
        self._root = getattr(messages, self._schema.name)
        self._version = version
        self._count = 0
        self.request = self._struct(self._schema.name, 0)

    def _struct(self, name: str, place: int) -> Any:
        made = self._root() if name == self._schema.name else getattr(self._root, name)()
        for field in self._schema.structs[name]:
            if not field.exists_in(self._version) or field.is_struct or field.type == "records":
                continue
            value: Any
            if field.is_array:
                value = [self._value(field, each) for each in (0, 1)]
            else:
                value = self._scalar(field, place)
            setattr(made, field.name, value)
        return made

    def _value(self, field: schema.Field, place: int) -> Any:
        if field.type in self._schema.structs:
            return self._struct(field.type, place)
        return self._scalar(field, place)

    def _scalar(self, field: schema.Field, place: int) -> Any:
        self._count += 1
        topic = (ORDERS, BILLS)[place]
        if field.name == "resource_type":
            return 2
        if field.name in (*topics._NAMES, *topics._STRINGS):
            return topic
        if field.type == "uuid":
            return IDS[topic]
        kinds = {"string": f"s{self._count}", "bytes": b"x", "bool": False, "float64": 1.0}
        return kinds.get(field.type, self._count % 100)


def errors_of(known: schema.Schema, struct: str, version: int, answer: Any) -> Iterator[int]:
    """Every error code of an answer."""
    for field in known.structs[struct]:
        if not field.exists_in(version):
            continue
        if field.name in answers._ERRORS:
            yield getattr(answer, field.name)
        elif field.is_array and field.type in known.structs:
            for each in getattr(answer, field.name) or ():
                yield from errors_of(known, field.type, version, each)


def all_errors(key: int, version: int, answer: Any) -> list[int]:
    known = schema.load(RESPONSE_NAMES[key])
    return list(errors_of(known, known.name, version, answer))


def sent(key: int, version: int, answer: Any) -> Any:
    """An answer as a client gets it; of the lowest and highest version, as codecs take time."""
    if version not in (VERSIONS[ApiKey(key)][0], VERSIONS[ApiKey(key)][-1]):
        return answer
    frame = b"".join(map(bytes, encode_response(key, version, 7, answer)))
    return decode_response(key, version, frame)[1]


@pytest.mark.parametrize("key", VERSIONS, ids=lambda key: key.name)
def test_all_that_a_request_names_has_failed(key: ApiKey) -> None:
    for version in VERSIONS[key]:
        request = Filled(key, version).request
        answer = sent(key, version, answers.failed(key, version, request, ERROR))
        found = all_errors(key, version, answer)
        of_session = key is ApiKey.FETCH and version >= 7
        assert found == [0] * of_session + [ERROR] * (len(found) - of_session)
        assert ERROR in found
        named = topics.topics_of(key, version, request, NAMES)
        assert bool(named) == (key in WITH_TOPICS)
        if named and key not in ONE_ERROR:
            assert set(named) == {ORDERS, BILLS}
            told = repr(answer)
            assert all(repr(name) in told or repr(IDS[name]) in told for name in named)


@pytest.mark.parametrize("key", WITH_TOPICS & {*VERSIONS}, ids=lambda key: key.name)
def test_a_topic_fails_and_another_one_is_asked_for(key: ApiKey) -> None:
    for version in VERSIONS[key]:
        request = Filled(key, version).request
        before = repr(request)
        failing, rest = topics.about(key, version, request, NAMES, ORDERS)
        assert repr(request) == before
        assert topics.topics_of(key, version, failing, NAMES) == [ORDERS]
        assert topics.topics_of(key, version, rest, NAMES) == [BILLS]
        assert answers.is_per_topic(key, version, failing) == (key not in ONE_ERROR)
        if key in ONE_ERROR:
            continue
        answer = answers.failed(key, version, failing, ERROR, of_topic=True)
        both = answers.failed(key, version, rest, ErrorCode.NONE, of_topic=True)
        answers.merge(key, both, answer)
        found = all_errors(key, version, sent(key, version, both))
        whole = answers.failed(key, version, request, ERROR)
        assert len(found) == len(all_errors(key, version, whole))
        assert {ERROR, 0} == set(found)


@given(SEEDS)
@examples(3)
def test_any_request_can_fail(seed: int) -> None:
    """Requests with nothing in them, and nulls: some answers have no place for an error then."""
    for key, version in ((key, version) for key, each in VERSIONS.items() for version in each):
        request = RandomMessages(seed, unknown_tags=False).message(REQUEST_NAMES[key], version)
        topics.topics_of(key, version, request, {})
        for of_topic in (False, True):
            answer = answers.failed(key, version, request, ERROR, of_topic=of_topic)
            if answer is not None:
                assert ERROR in all_errors(key, version, sent(key, version, answer))


def test_a_group_does_not_fail_for_a_topic() -> None:
    """What is above the topic is of no error, as it is of other topics, too."""
    request = Filled(ApiKey.OFFSET_FETCH, 9).request
    failing, _ = topics.about(ApiKey.OFFSET_FETCH, 9, request, NAMES, ORDERS)
    answer = answers.failed(ApiKey.OFFSET_FETCH, 9, failing, ERROR, of_topic=True)
    assert [group.error_code for group in answer.groups] == [0, 0]
    parts = [each for group in answer.groups for topic in group.topics for each in topic.partitions]
    assert [each.error_code for each in parts] == [ERROR] * 4


def test_a_session_fails_as_a_whole() -> None:
    request = Filled(ApiKey.FETCH, 12).request
    error = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert answers.failed(ApiKey.FETCH, 12, request, error).error_code == error


@pytest.mark.parametrize("topic", [None, ORDERS])
def test_metadata_fails_in_the_brokers_answer(topic: str | None) -> None:
    kinds = messages.MetadataResponse
    parts = [kinds.MetadataResponsePartition(partition_index=0, leader_id=1)]
    found = [
        kinds.MetadataResponseTopic(name=name, topic_id=IDS[name], partitions=list(parts))
        for name in IDS
    ]
    answer = kinds(brokers=[kinds.MetadataResponseBroker(node_id=1)], topics=found)
    assert answers.spoil(12, answer, ERROR, topic)
    assert [each.error_code for each in answer.topics] == [ERROR, ERROR if topic is None else 0]
    assert answer.topics[0].partitions == []
    assert answer.brokers
    assert not answers.spoil(12, answer, ERROR, "nothing")


def test_names_are_learned_from_answers() -> None:
    names: dict[bytes, str] = {}
    kinds = messages.MetadataResponse
    known = kinds.MetadataResponseTopic(name=ORDERS, topic_id=IDS[ORDERS])
    topics.learn(kinds(topics=[known, kinds.MetadataResponseTopic(name="gone")]), names)
    assert names == {IDS[ORDERS]: ORDERS}
    request = Filled(ApiKey.FETCH, 18).request
    shown = base64.urlsafe_b64encode(IDS[BILLS]).decode().rstrip("=")
    assert topics.topics_of(ApiKey.FETCH, 18, request, names) == [ORDERS, shown]
