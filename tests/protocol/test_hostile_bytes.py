"""Bytes from outside can only make a decoder raise DecodeError, in bounded time and memory."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftpy.protocol import codec, schema
from kraftpy.protocol.api import RESPONSE_NAMES, ApiKey
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.generator import message_classes
from kraftpy.protocol.source import CodeWriter
from tests.protocol.random_messages import SEEDS, RandomMessages, all_versions, examples
from tests.protocol.test_codec_oracles import encode

NAMES = list(schema.names())


def decodes(name: str, version: int, data: bytes) -> Any:
    """The message, or None if the bytes are bad; any other exception fails the test."""
    try:
        return codec.decoder(name, version)(data, 0)[0]
    except DecodeError:
        return None


@pytest.mark.parametrize("name", NAMES)
@examples(6)
@given(seed=SEEDS)
def test_every_strict_prefix_of_a_message_is_refused(name: str, seed: int) -> None:
    """A slice past the end is silently short in Python: each length must be checked."""
    for version in all_versions(name):
        data = encode(name, version, RandomMessages(seed).message(name, version))
        decode = codec.decoder(name, version)
        step = max(1, len(data) // 100)
        for size in {*range(0, len(data), step), *range(min(60, len(data)))}:
            try:
                decode(data[:size], 0)
            except DecodeError:
                continue
            pytest.fail(f"version {version} is decoded from {size} bytes of {len(data)}")


@pytest.mark.parametrize("name", NAMES)
@examples(10)
@given(seed=SEEDS)
def test_mutated_bytes_decode_to_something_encodable_or_are_refused(name: str, seed: int) -> None:
    rng = random.Random(seed)
    for version in all_versions(name):
        data = bytearray(encode(name, version, RandomMessages(seed).message(name, version)))
        for _ in range(6):
            mutant = bytearray(data)
            for _ in range(min(len(mutant), rng.choice((1, 1, 2, 5)))):
                mutant[rng.randrange(len(mutant))] = rng.choice(
                    (0, 1, 127, 128, 255, rng.randrange(256))
                )
            message = decodes(name, version, bytes(mutant))
            if message is not None:
                assert decodes(name, version, encode(name, version, message)) is not None


@pytest.mark.parametrize("name", NAMES)
@examples()
@given(data=st.binary(max_size=80))
def test_random_bytes_are_refused_or_decoded(name: str, data: bytes) -> None:
    for version in all_versions(name):
        decodes(name, version, data)


def test_no_array_element_is_free_of_bytes() -> None:
    """Else five bytes could ask for four billion objects."""
    for name in NAMES:
        for version in all_versions(name):
            writer = CodeWriter(schema.load(name), version, message_classes(name))
            for fields in writer.schema.structs.values():
                for field in fields:
                    if field.is_array and field.exists_in(version) and field.type[0].isupper():
                        assert writer.min_size(field.type) > 0


def peak_memory(action: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


HUGE = (b"\xff\xff\xff\xff\x0f", b"\xfe\xff\xff\xff\x07", b"\x7f\xff\xff\xff", b"\x7f\xff")


@pytest.mark.parametrize("name", NAMES)
def test_huge_counts_and_lengths_are_refused_before_they_cost_memory(name: str) -> None:
    versions = all_versions(name)
    for version in {versions[0], versions[-1]}:
        data = encode(name, version, RandomMessages(7).message(name, version))
        codec.decoder(name, version)(data, 0)  # builds the decoder outside of the measurement
        positions = range(0, len(data), max(1, len(data) // 12))
        mutants = [data[:p] + huge + data[p + len(huge) :] for p in positions for huge in HUGE]

        def decode_all(version: int = version, mutants: list[bytes] = mutants) -> None:
            for mutant in mutants:
                decodes(name, version, mutant)

        assert peak_memory(decode_all) < 200_000 + 300 * len(data)


def test_memory_is_linear_in_the_input() -> None:
    """The worst case: the smallest elements that make the largest objects."""

    def peak(count: int) -> int:
        # FindCoordinator v4: coordinator_keys of empty strings, one byte each.
        body = b"\0" + bytes([count & 127 | 128, count >> 7 & 127 | 128, count >> 14])
        data = body + b"\1" * (count - 1) + b"\0"
        return peak_memory(lambda: codec.decode_request(ApiKey.FIND_COORDINATOR, 4, data, 0))

    assert peak(200_001) < 2.5 * peak(100_001)
    assert peak(200_001) < 200_000 * 20


class TestProduceV9:
    """Named traps on the request that strangers send most."""

    BODY = b"\0" + b"\xff\xff" + b"\0\0\3\xe8"  # no transactional id, acks -1, timeout 1000

    def refused(self, rest: bytes, why: str) -> None:
        with pytest.raises(DecodeError, match=why):
            codec.decode_request(ApiKey.PRODUCE, 9, self.BODY + rest, 0)

    def test_null_for_a_field_that_must_not_be_null(self) -> None:
        self.refused(b"\0\0", "topic_data is null")
        self.refused(b"\2\0\1\0\0", "name is null")

    def test_length_one_past_the_end(self) -> None:
        self.refused(b"\2\5abc", "name claims 4 bytes, 3 are left")

    def test_text_that_is_not_utf8(self) -> None:
        self.refused(b"\2\2\xff\1\0\0", "utf-8")

    def test_varint_of_six_bytes(self) -> None:
        self.refused(b"\x80\x80\x80\x80\x80\1", "varint")

    def test_varint_of_33_bits(self) -> None:
        self.refused(b"\x80\x80\x80\x80\x10", "varint")

    def test_count_without_room_for_its_elements(self) -> None:
        self.refused(b"\x7f" + b"\0" * 30, "topic_data claims 126 elements")

    def test_tagged_field_longer_than_the_frame(self) -> None:
        self.refused(b"\1\1\5\x7fxy", "tagged field 5 claims 127 bytes")

    def test_more_tagged_fields_than_bytes(self) -> None:
        self.refused(b"\1\xff\xff\xff\xff\x0f", "tagged fields claims")

    def test_bytes_behind_the_message_are_ignored_as_kafka_does(self) -> None:
        request = codec.decode_request(ApiKey.PRODUCE, 9, self.BODY + b"\1\0\0", 0)
        assert (request.timeout_ms, request.topic_data) == (1000, [])

    def test_librdkafkas_metadata_for_all_topics(self) -> None:
        """It reserves four bytes for the array's count, writes null in one and sends the rest."""
        body = b"\0" + b"\0\0\0" + b"\1\0\0"
        assert codec.decode_request(ApiKey.METADATA, 12, body, 0).topics is None

    def test_nothing_at_all(self) -> None:
        with pytest.raises(DecodeError, match="too early"):
            codec.decode_request(ApiKey.PRODUCE, 9, b"", 0)


def test_a_known_tagged_field_must_fill_its_size() -> None:
    body = b"\0\0\0\0" + b"\0\0" + b"\0\0\0\0" + b"\1"  # Fetch v16 response without topics
    codec.decoder("FetchResponse", 16)(body + b"\1\0\1\1", 0)
    with pytest.raises(DecodeError, match="node_endpoints ends 1 bytes before"):
        codec.decoder("FetchResponse", 16)(body + b"\1\0\2\1\0", 0)
    with pytest.raises(DecodeError, match="too early"):
        codec.decoder("FetchResponse", 16)(body + b"\1\0\0", 0)


@given(data=st.binary(max_size=60))
@examples(200)
def test_random_headers_are_refused_or_decoded(data: bytes) -> None:
    try:
        header, pos = codec.decode_request_header(data)
    except DecodeError:
        return
    assert 10 <= pos <= len(data)
    assert -(2**15) <= header.api_key < 2**15


@given(data=st.binary(max_size=60), key=st.sampled_from(list(ApiKey)))
@examples(200)
def test_random_responses_are_refused_or_decoded(data: bytes, key: ApiKey) -> None:
    for version in all_versions(RESPONSE_NAMES[key]):
        try:
            codec.decode_response(key, version, data)
        except DecodeError:
            continue


@given(data=st.binary(max_size=60))
@examples(50)
@pytest.mark.parametrize("name", [n for n in NAMES if schema.load(n).kind == "data"])
def test_random_stored_messages_are_refused_or_decoded(name: str, data: bytes) -> None:
    try:
        codec.decode_versioned(name, data)
    except DecodeError:
        return
