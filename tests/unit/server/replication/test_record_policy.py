"""What of a producer's message set is looked at before it is made into a batch."""

from __future__ import annotations

import pytest

from kraftpy.core.config import TopicConfig
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.legacy import iter_messages
from kraftpy.protocol.records import read_batch_header
from kraftpy.server.replication.record_policy import TakesLong, upconvert_quickly
from tests.server.old_wire import message_set


def test_300_a_set_that_can_make_no_batch_that_fits_is_not_opened() -> None:
    config = TopicConfig(max_message_bytes=1000)
    with pytest.raises(KafkaError) as caught:
        upconvert_quickly(memoryview(bytes(5001)), config)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    smallest = message_set(1, [(5, None, None)] * 147)
    assert len(smallest) <= 5000
    assert read_batch_header(upconvert_quickly(memoryview(smallest), config)).size_bytes > 1000


@pytest.mark.parametrize(
    "messages",
    [
        message_set(1, [(5, None, b"v")] * 201),
        message_set(1, [(5, None, b"v" * 20_000)] * 2),
        message_set(1, [(5, None, b"v" * 20_000)] * 2, "gzip"),
    ],
    ids=["many", "large", "large when opened"],
)
def test_300_what_takes_more_than_a_moment_is_for_elsewhere(messages: bytes) -> None:
    with pytest.raises(TakesLong):
        upconvert_quickly(memoryview(messages), TopicConfig())
    assert list(iter_messages(messages))
