"""Framing, headers and the traps of the codec, against bytes written out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.api_header import RequestHeader as KafkaPythonRequestHeader

from kraftpy.protocol import api, codec, generator, messages, schema
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import DecodeError
from tests.protocol.random_messages import all_versions

HEARTBEAT_BODY = b"\0\1g\0\0\0\5\0\1m"  # version 0: group g, generation 5, member m


def heartbeat_frame(client_id: bytes = b"\0\1c") -> bytes:
    return b"\0\x0c\0\0\0\0\0\x07" + client_id + HEARTBEAT_BODY


class TestRequestHeader:
    def test_version_1(self) -> None:
        header, pos = codec.decode_request_header(heartbeat_frame())
        assert (header.api_key, header.api_version, header.correlation_id) == (12, 0, 7)
        assert header.client_id == "c"
        request = codec.decode_request(12, 0, heartbeat_frame(), pos)
        assert (request.group_id, request.generation_id, request.member_id) == ("g", 5, "m")

    def test_null_and_empty_client_id_differ(self) -> None:
        assert codec.decode_request_header(heartbeat_frame(b"\xff\xff"))[0].client_id is None
        assert codec.decode_request_header(heartbeat_frame(b"\0\0"))[0].client_id == ""

    def test_version_2_has_a_client_id_that_is_not_compact_and_then_tags(self) -> None:
        frame = b"\0\x0c\0\4\0\0\0\7" + b"\0\1c" + b"\1\x63\2xy" + b"rest"
        header, pos = codec.decode_request_header(frame)
        assert header.client_id == "c"
        assert frame[pos:] == b"rest"

    @pytest.mark.parametrize("frame", [b"", b"\0" * 9, heartbeat_frame()[:10]])
    def test_cut_short(self, frame: bytes) -> None:
        with pytest.raises(DecodeError):
            codec.decode_request_header(frame)

    def test_client_id_past_the_end(self) -> None:
        with pytest.raises(DecodeError, match="client id claims 32767 bytes"):
            codec.decode_request_header(b"\0\x0c\0\0\0\0\0\7\x7f\xffab")

    def test_client_id_that_is_not_utf8(self) -> None:
        with pytest.raises(DecodeError, match="utf-8"):
            codec.decode_request_header(heartbeat_frame(b"\0\1\xff"))

    @pytest.mark.parametrize("key", [-1, 999])
    def test_an_unknown_api_still_has_a_header_to_log(self, key: int) -> None:
        frame = key.to_bytes(2, "big", signed=True) + b"\0\x63\0\0\0\7\0\1c"
        header, pos = codec.decode_request_header(frame)
        assert (header.api_key, header.client_id, pos) == (key, "c", len(frame))

    @pytest.mark.parametrize(("key", "version"), [(12, 0), (12, 3), (12, 4), (18, 2), (18, 3)])
    @pytest.mark.parametrize("client_id", [None, "", "client-ä"])
    def test_kafka_python_writes_the_same_header(
        self, key: int, version: int, client_id: str | None
    ) -> None:
        name = api.REQUEST_NAMES[key]
        ours = codec.encode_request(key, version, -5, client_id, getattr(messages, name)())[0]
        theirs = KafkaPythonRequestHeader(
            request_api_key=key,
            request_api_version=version,
            correlation_id=-5,
            client_id=client_id,
        ).encode(flexible=api.request_header_version(key, version) == 2)
        assert ours == theirs


class TestApiVersions:
    def test_response_header_is_always_version_0(self) -> None:
        for version in range(5):
            frame = codec.encode_response(18, version, 7, messages.ApiVersionsResponse())
            assert frame[0] == b"\0\0\0\7"
            assert api.response_header_version(ApiKey.API_VERSIONS, version) == 0

    def test_a_request_of_an_unknown_version_has_a_readable_header(self) -> None:
        frame = b"\0\x12\0\x63\0\0\0\7\0\1c\0" + b"whatever"
        header, pos = codec.decode_request_header(frame)
        assert (header.api_version, header.correlation_id) == (99, 7)
        assert frame[pos:] == b"whatever"

    def test_error_35_in_a_version_0_body(self) -> None:
        response = messages.ApiVersionsResponse(
            error_code=35,
            api_keys=[messages.ApiVersionsResponse.ApiVersion(18, 0, 4)],
            throttle_time_ms=9,
        )
        frame = b"".join(codec.encode_response(18, 0, 7, response))
        assert frame == b"\0\0\0\7" + b"\0\x23" + b"\0\0\0\1" + b"\0\x12\0\0\0\4"

    def test_no_other_flexible_response_lacks_header_tags(self) -> None:
        for key in ApiKey:
            last = all_versions(api.RESPONSE_NAMES[key])[-1]
            expected = api.is_flexible(key, last) and key != ApiKey.API_VERSIONS
            assert api.response_header_version(key, last) == expected


class TestResponse:
    def test_flexible_header_with_tags_from_the_peer(self) -> None:
        frame = b"\0\0\0\7" + b"\1\x63\1x" + b"\0\0\0\0\0\x1b\0"
        correlation_id, response = codec.decode_response(ApiKey.HEARTBEAT, 4, frame)
        assert (correlation_id, response.error_code) == (7, 27)

    @pytest.mark.parametrize("version", [0, 4])
    def test_round_trip(self, version: int) -> None:
        response = messages.HeartbeatResponse(error_code=27)
        frame = b"".join(codec.encode_response(ApiKey.HEARTBEAT, version, 7, response))
        assert codec.decode_response(ApiKey.HEARTBEAT, version, frame) == (7, response)

    @pytest.mark.parametrize("frame", [b"", b"\0\0\0", b"\0\0\0\7", b"\0\0\0\7\0"])
    def test_cut_short(self, frame: bytes) -> None:
        with pytest.raises(DecodeError):
            codec.decode_response(ApiKey.HEARTBEAT, 4, frame)

    def test_bytes_behind_the_response(self) -> None:
        with pytest.raises(DecodeError, match="ends 1 bytes early"):
            codec.decode_response(ApiKey.HEARTBEAT, 0, b"\0\0\0\7\0\0\0")


def test_versions_without_a_schema_are_value_errors() -> None:
    with pytest.raises(ValueError, match="no version 99"):
        codec.decode_request(ApiKey.PRODUCE, 99, b"", 0)
    with pytest.raises(ValueError, match="no API has the key 999"):
        codec.encode_response(999, 0, 0, None)


class TestTags:
    def test_unknown_tags_are_kept_and_written_again_in_order(self) -> None:
        body = b"\0\0\0\0\0\0" + b"\2\x90\x4e\1b" + b"\5\1a"  # 10000 before 5, on purpose
        response, _ = codec.decoder("HeartbeatResponse", 4)(body, 0)
        assert response._tags == {10_000: b"b", 5: b"a"}
        again = b"".join(codec.encode_response(ApiKey.HEARTBEAT, 4, 7, response))
        assert again[5:] == b"\0\0\0\0\0\0" + b"\2\5\1a" + b"\x90\x4e\1b"

    def test_the_last_of_a_repeated_tag_counts_as_in_kafka(self) -> None:
        body = b"\0\0\0\0\0\0" + b"\2\5\1a\5\1b"
        assert codec.decoder("HeartbeatResponse", 4)(body, 0)[0]._tags == {5: b"b"}

    def test_known_and_unknown_tags_side_by_side(self) -> None:
        leader = messages.ProduceResponse.LeaderIdAndEpoch(leader_id=3, leader_epoch=4)
        partition = messages.ProduceResponse.PartitionProduceResponse(
            current_leader=leader, _tags={10_001: b"private"}
        )
        topic = messages.ProduceResponse.TopicProduceResponse(partition_responses=[partition])
        response = messages.ProduceResponse(responses=[topic])
        frame = b"".join(codec.encode_response(ApiKey.PRODUCE, 10, 1, response))
        assert codec.decode_response(ApiKey.PRODUCE, 10, frame)[1] == response
        old = b"".join(codec.encode_response(ApiKey.PRODUCE, 8, 1, response))
        assert b"private" not in old

    def test_a_tagged_field_with_its_default_is_not_written(self) -> None:
        response = messages.FetchResponse.PartitionData(
            current_leader=messages.FetchResponse.LeaderIdAndEpoch()
        )
        with_default = self.fetch_response(response)
        without = self.fetch_response(messages.FetchResponse.PartitionData())
        assert with_default == without

    @staticmethod
    def fetch_response(partition: messages.FetchResponse.PartitionData) -> bytes:
        topic = messages.FetchResponse.FetchableTopicResponse(partitions=[partition])
        message = messages.FetchResponse(responses=[topic])
        return b"".join(codec.encode_response(ApiKey.FETCH, 12, 1, message))

    def test_tags_of_array_elements_read_in_one_go(self) -> None:
        """Fixed-size elements are read together unless one of them has tags."""
        api_version = messages.ApiVersionsResponse.ApiVersion
        response = messages.ApiVersionsResponse(
            api_keys=[api_version(0, 0, 9), api_version(1, 4, 12, _tags={7: b"x"}), api_version(3)]
        )
        frame = b"".join(codec.encode_response(ApiKey.API_VERSIONS, 3, 1, response))
        assert codec.decode_response(ApiKey.API_VERSIONS, 3, frame)[1] == response


class TestRecords:
    """`records` are never copied: a slice of the input, and the caller's objects on the way out."""

    @staticmethod
    def request(records: Any) -> messages.ProduceRequest:
        partition = messages.ProduceRequest.PartitionProduceData(index=0, records=records)
        topic = messages.ProduceRequest.TopicProduceData(name="t", partition_data=[partition])
        return messages.ProduceRequest(acks=1, topic_data=[topic])

    @pytest.mark.parametrize("version", [3, 9])
    def test_decoded_records_are_a_view_of_the_buffer(self, version: int) -> None:
        frame = b"".join(codec.encode_request(0, version, 1, None, self.request(b"abc")))
        buffer = bytearray(frame)
        _, pos = codec.decode_request_header(buffer)
        request = codec.decode_request(0, version, memoryview(buffer), pos)
        records = request.topic_data[0].partition_data[0].records
        records[:] = b"xyz"
        assert b"xyz" in buffer

    @pytest.mark.parametrize("version", [3, 9])
    def test_encoded_records_are_the_objects_given(self, version: int) -> None:
        class FileSlice:
            def __len__(self) -> int:
                return 1000

        file_slice, view = FileSlice(), memoryview(b"abc")
        parts = codec.encode_request(0, version, 1, None, self.request([view, file_slice]))
        assert any(part is file_slice for part in parts)
        assert any(part is view for part in parts)
        size = b"\xec\x07" if version == 9 else (1003).to_bytes(4, "big")
        assert parts[parts.index(view) - 1].endswith(size)

    @pytest.mark.parametrize("version", [3, 9])
    def test_null_and_empty_records_differ(self, version: int) -> None:
        for records in (None, b""):
            frame = b"".join(codec.encode_request(0, version, 1, None, self.request(records)))
            _, pos = codec.decode_request_header(frame)
            request = codec.decode_request(0, version, frame, pos)
            assert request.topic_data[0].partition_data[0].records == records

    def test_bytes_fields_are_copies(self) -> None:
        buffer = bytearray(b"\0\0" + b"\0\0\0\1" + b"\0\1t" + b"\0\0\0\3abc")
        _, subscription = codec.decode_versioned("ConsumerProtocolSubscription", buffer)
        buffer[-3:] = b"xyz"
        assert subscription.user_data == b"abc"


class TestEncodingRefuses:
    def refused(self, version: int, request: Any, why: str) -> None:
        with pytest.raises(ValueError, match=why):
            codec.encode_request(request.API_KEY, version, 1, None, request)

    def test_null_for_a_field_that_must_not_be_null(self) -> None:
        self.refused(0, messages.HeartbeatRequest(group_id=None), "HeartbeatRequest.group_id")
        self.refused(4, messages.HeartbeatRequest(group_id=None), "HeartbeatRequest.group_id")
        self.refused(9, messages.ProduceRequest(topic_data=None), "ProduceRequest.topic_data")

    def test_null_for_a_field_that_may_be_null_in_later_versions_only(self) -> None:
        request = messages.MetadataRequest(topics=None)
        self.refused(0, request, "MetadataRequest.topics")
        assert codec.encode_request(3, 1, 1, None, request)[-1] == b"\xff\xff\xff\xff"

    def test_numbers_out_of_range(self) -> None:
        self.refused(9, messages.ProduceRequest(acks=2**15), "ProduceRequest.acks = 32768")
        topic = messages.MetadataRequest.MetadataRequestTopic(name="t")
        topic.topic_id = "0" * 16
        self.refused(12, messages.MetadataRequest([topic]), "MetadataRequestTopic.topic_id")

    def test_none_for_a_number_or_uuid(self) -> None:
        partition = messages.ProduceRequest.PartitionProduceData(index=None)
        topic = messages.ProduceRequest.TopicProduceData(name="t", partition_data=[partition])
        request = messages.ProduceRequest(topic_data=[topic])
        self.refused(9, request, "PartitionProduceData.index must not be None")
        fetch = messages.FetchRequest(topics=[messages.FetchRequest.FetchTopic(topic_id=None)])
        self.refused(13, fetch, "FetchTopic.topic_id must not be None")
        group = messages.DescribeGroupsRequest(groups=["g", None])
        self.refused(5, group, "DescribeGroupsRequest.groups must not be None")

    def test_a_uuid_of_the_wrong_size(self) -> None:
        topic = messages.FetchRequest.FetchTopic(topic_id=b"short")
        self.refused(13, messages.FetchRequest(topics=[topic]), "topic_id must be 16 bytes")

    def test_a_string_too_long_for_its_length_field(self) -> None:
        self.refused(
            0,
            messages.HeartbeatRequest(group_id="x" * 40_000),
            "HeartbeatRequest.group_id is longer than 32767 bytes",
        )

    def test_a_surrogate_that_utf8_cannot_hold(self) -> None:
        self.refused(4, messages.HeartbeatRequest(group_id="\ud800"), "surrogates")


class TestStoredMessages:
    def test_the_version_stands_in_front(self) -> None:
        key = messages.OffsetCommitKey(group="g", topic="t", partition=3)
        data = codec.encode_versioned("OffsetCommitKey", 1, key)
        assert data == b"\0\1" + b"\0\1g" + b"\0\1t" + b"\0\0\0\3"
        assert codec.decode_versioned("OffsetCommitKey", data) == (1, key)

    def test_end_transaction_marker(self) -> None:
        marker = messages.EndTxnMarker(coordinator_epoch=5)
        assert codec.encode_versioned("EndTxnMarker", 0, marker) == b"\0\0\0\0\0\5"

    def test_consumers_newer_than_us_are_understood(self) -> None:
        """KIP-429: a member reads what it knows of a subscription and ignores the rest."""
        subscription = messages.ConsumerProtocolSubscription(topics=["t"], rack_id="r")
        data = codec.encode_versioned("ConsumerProtocolSubscription", 3, subscription)
        newer = b"\0\x63" + data[2:] + b"a field of the future"
        assert codec.decode_versioned("ConsumerProtocolSubscription", newer) == (99, subscription)

    @pytest.mark.parametrize("data", [b"", b"\0", b"\0\x63\0\0", b"\xff\xff\0\0", b"\0\0\0\0\0\5x"])
    def test_stored_records_must_be_exact(self, data: bytes) -> None:
        with pytest.raises(DecodeError):
            codec.decode_versioned("EndTxnMarker", data)

    def test_a_negative_version_of_a_subscription(self) -> None:
        with pytest.raises(DecodeError):
            codec.decode_versioned("ConsumerProtocolSubscription", b"\xff\xff\0\0\0\0")

    def test_offset_value_with_a_topic_id(self) -> None:
        value = messages.OffsetCommitValue(offset=5, metadata="m", topic_id=b"i" * 16)
        data = codec.encode_versioned("OffsetCommitValue", 4, value)
        assert data.endswith(b"\1\0\x10" + b"i" * 16)
        assert codec.decode_versioned("OffsetCommitValue", data) == (4, value)


LATER_NULL = [
    (name, version, struct, field.name)
    for name in schema.names()
    if name.endswith("Response")
    for struct, fields in schema.load(name).structs.items()
    for field in fields
    if field.nullable_from is not None
    for version in all_versions(name)
    if field.exists_in(version) and not field.nullable_in(version)
]


@pytest.mark.parametrize(("name", "version", "struct", "field"), LATER_NULL)
def test_what_a_response_cannot_leave_null_yet_is_empty(
    name: str, version: int, struct: str, field: str
) -> None:
    """A handler needn't know which version has null: all such fields are names."""
    classes = generator.message_classes(name)
    message = classes[struct](**{field: None})
    for outer, fields in schema.load(name).structs.items():
        for each in fields:
            if each.type == struct:  # they are in an array of the message itself
                assert outer == name
                message = classes[name](**{each.name: [message]})
    parts: list[bytes] = []
    codec.encoder(name, version)(message, parts.append)
    decoded, _ = codec.decoder(name, version)(b"".join(parts), 0)
    for each in schema.load(name).structs[name]:
        if each.type == struct:
            (decoded,) = getattr(decoded, each.name)
    assert getattr(decoded, field) == ""


def test_there_are_such_fields() -> None:
    assert {(name, field) for name, _, _, field in LATER_NULL} == {
        ("DeleteTopicsResponse", "name"),
        ("JoinGroupResponse", "protocol_name"),
        ("MetadataResponse", "name"),
    }
