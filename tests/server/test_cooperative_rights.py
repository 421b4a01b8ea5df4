"""Who may be leased batches where clients have rights: READ of the group, and of the topic."""

from __future__ import annotations

import pytest

from kraftpy.core.security.acls import Operation as Op
from kraftpy.core.security.acls import Resource
from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode as E
from kraftpy.protocol.extensions import (
    ACQUIRED_TAG,
    COOPERATION_TAG,
    Cooperation,
    decode_ranges,
    encode_cooperation,
)
from kraftpy.protocol.records import build_batch
from tests.server.test_rights import THERE, Secured, secured
from tests.server.wire import fetch_request, produce

__all__ = ["secured"]

TOPIC_READ, GROUP_READ = (Resource.TOPIC, Op.READ), (Resource.GROUP, Op.READ)


@pytest.fixture
def shared(secured: Secured) -> Secured:
    kinds = m.IncrementalAlterConfigsRequest
    config = kinds.AlterableConfig("accept.range.fetch", 0, "true")
    request = kinds([kinds.AlterConfigsResource(2, THERE, [config])])
    answer = secured.admin.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
    assert answer.responses[0].error_code == E.NONE
    batch = build_batch([(1, None, b"v", [])])
    assert produce(secured.admin, THERE, batch).error_code == E.NONE
    return secured


def test_it_takes_the_group_and_the_topic(shared: Secured) -> None:
    """What the leader asks the coordinator it asks as a broker, whatever the client may."""
    with shared.connect() as wire:

        def fetch() -> m.FetchResponse:
            request = fetch_request(THERE, 1, max_wait_ms=10_000)
            cooperation = Cooperation(THERE, "ann", 1, 30_000)
            request._tags = {COOPERATION_TAG: encode_cooperation(cooperation)}
            answer: m.FetchResponse = wire.call(ApiKey.FETCH, 12, request)
            return answer

        shared.give(TOPIC_READ)
        assert fetch().error_code == E.GROUP_AUTHORIZATION_FAILED
        shared.give(GROUP_READ)
        data = fetch().responses[0].partitions[0]
        assert data.error_code == E.TOPIC_AUTHORIZATION_FAILED
        assert not data.records
        shared.give(TOPIC_READ, GROUP_READ)
        data = fetch().responses[0].partitions[0]
        assert data.error_code == E.NONE
        assert data._tags is not None
        assert decode_ranges(data._tags[ACQUIRED_TAG], 9) == [(1, 1)]
