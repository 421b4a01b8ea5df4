"""Error codes against kio's table; those from 10000 up are kraftpy's own."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode

from kraftpy.protocol.errors import ErrorCode, KafkaError


def test_codes_names_and_retriability_are_kafkas() -> None:
    ours = {(code.name, int(code), code.retriable) for code in ErrorCode if code < 10_000}
    theirs = {(code.name.upper(), int(code), code.retriable) for code in KioErrorCode}
    assert ours == theirs


def test_codes_are_found_by_number() -> None:
    assert ErrorCode(3) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ErrorCode.NONE == 0
    with pytest.raises(ValueError, match="9999"):
        ErrorCode(9999)


def test_every_code_says_what_it_means() -> None:
    sentences = [code.message for code in ErrorCode]
    assert len(set(sentences)) == len(sentences)
    assert all(sentence.endswith(".") for sentence in sentences)


def test_kafka_error_carries_code_and_message() -> None:
    assert KafkaError(ErrorCode.INVALID_REQUEST).message == ErrorCode.INVALID_REQUEST.message
    error = KafkaError(ErrorCode.INVALID_CONFIG, "retention.ms must be a number")
    assert (error.code, str(error)) == (40, "INVALID_CONFIG: retention.ms must be a number")
