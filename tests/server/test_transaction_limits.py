"""What clients may not do with transactions: Kafka's errors, and that nothing comes of it."""

from __future__ import annotations

from collections.abc import Callable

from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode as E
from tests.server.bad_transactions import EXPECTED, Asker
from tests.server.test_transactional_offsets import Group
from tests.server.test_transactions import Id
from tests.server.wire import Wire


def test_wrong_requests_get_kafkas_answers(wire: Wire) -> None:
    """As Apache Kafka answers them: `tests/conformance/test_bad_transactions.py`."""
    assert dict(Asker(wire).answers()) == EXPECTED


def test_groups_that_can_not_be(wire: Wire) -> None:
    own = Id(wire, "of-no-group").begin()
    for length in (32_768, 1 << 20):
        request = m.AddOffsetsToTxnRequest(own.name, *own.producer, "x" * length)
        answer = wire.call(ApiKey.ADD_OFFSETS_TO_TXN, 3, request)
        assert answer.error_code == E.INVALID_GROUP_ID
    assert own.described().transaction_state == "Empty"


def test_offsets_of_ids_that_can_not_be(wire: Wire, new_topic: Callable[..., str]) -> None:
    topic, group = new_topic(), Group(wire, "group")
    own = Id(wire, "of-the-group").begin()
    for name in ("", "x" * 32_768):
        own.name = name
        for version in (3, 4, 5):
            assert group.commit_in(own, topic, 5, version=version) is E.INVALID_REQUEST
