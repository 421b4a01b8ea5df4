"""Cooperative fetches over the wire: who gets which batches, what is refused, what comes again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kraftpy.protocol import messages as m
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode as E
from kraftpy.protocol.extensions import (
    ACQUIRED_TAG,
    COOPERATION_TAG,
    COOPERATIVE_FEATURE,
    DONE_MAX,
    DONE_TAG,
    KEY_RANGES_TAG,
    Cooperation,
    decode_ranges,
    encode_cooperation,
    encode_ranges,
)
from kraftpy.protocol.records import build_batch, iter_records, split_batches
from kraftpy.protocol.varint import encode_uvarint
from kraftpy.testing import Broker
from tests.server.test_claims import Claimer
from tests.server.test_produce import now_ms
from tests.server.test_transactions import Id
from tests.server.wire import Wire, fetch, fetch_request, produce
from tests.waiting import wait_until

NewTopic = Callable[..., str]
Ranges = list[tuple[int, int]]
VERSION = 12
LONG_MS = 30_000
SHORT_MS = 300


def batch(count: int, **options: Any) -> bytes:
    return build_batch([(now_ms(), b"k", bytes(40), []) for _ in range(count)], **options)


class Member:
    """One of a group `g-TOPIC`, on a connection of its own; it asks for one batch at a time."""

    def __init__(self, wire: Wire, topic: str, name: str, *, timeout_ms: int = LONG_MS) -> None:
        self.wire = wire
        self.topic = topic
        self.cooperation = Cooperation(f"g-{topic}", name, 1, timeout_ms)

    def request(
        self, offset: int, *, done: Ranges | bytes | None = None, **options: Any
    ) -> m.FetchRequest:
        request = fetch_request(self.topic, offset, **{"partition_max_bytes": 1, **options})
        request._tags = {COOPERATION_TAG: encode_cooperation(self.cooperation)}
        if done is not None:
            content = done if isinstance(done, bytes) else encode_ranges(done)
            request.topics[0].partitions[0]._tags = {DONE_TAG: content}
        return request

    def answer(self, offset: int, **options: Any) -> Any:
        return self.wire.call(ApiKey.FETCH, VERSION, self.request(offset, **options))

    def ask(self, offset: int, **options: Any) -> Any:
        response = self.answer(offset, **options)
        assert response.error_code == E.NONE
        return response.responses[0].partitions[0]

    def fetch(self, offset: int, *, max_wait_ms: int = 10_000, **options: Any) -> Ranges:
        """What is this member's now; the answer's batches have these records."""
        data = self.ask(offset, max_wait_ms=max_wait_ms, **options)
        assert data.error_code == E.NONE
        acquired = decode_ranges(data._tags[ACQUIRED_TAG], 100)
        offsets = sent(data)
        for first, last in acquired:
            assert [each for each in offsets if first <= each <= last]
        return acquired

    def refusal(self, offset: int, **options: Any) -> E:
        data = self.ask(offset, **options)
        assert not data.records
        return E(data.error_code)


def sent(data: Any) -> list[int]:
    records = bytes(data.records or b"")
    return [
        record.offset
        for position, _ in split_batches(records)
        for record in iter_records(records, position)
    ]


class Shared:
    """A topic with batches of ten records, and a group that begins at 0."""

    def __init__(self, wire: Wire, topic: str, batches: int) -> None:
        self.wire = wire
        self.topic = topic
        for _ in range(batches):
            assert produce(wire, topic, batch(10)).error_code == E.NONE
        self.group = Claimer(wire, f"g-{topic}")

    def begin(self, offset: int = 0) -> None:
        assert self.group.commit(self.topic, offset) is E.NONE

    def member(self, name: str, **options: Any) -> Member:
        return Member(self.wire, self.topic, name, **options)


@pytest.fixture
def shared(wire: Wire, new_topic: NewTopic) -> Callable[[int], Shared]:
    def create(batches: int) -> Shared:
        found = Shared(wire, new_topic(accept_range_fetch="true"), batches)
        found.begin()
        return found

    return create


def test_members_get_batches_of_their_own(shared: Callable[[int], Shared]) -> None:
    """Seed 001: the second one asks for 0, too, in the hope that the first takes care of that."""
    setting = shared(3)
    ann, ben = setting.member("ann"), setting.member("ben")
    assert ann.fetch(0) == [(0, 9)]
    assert ben.fetch(0) == [(10, 19)]
    assert ben.fetch(0) == [(10, 19)], "its answer may have been lost: the marker stays"
    assert ann.fetch(10) == [(20, 29)]
    assert ben.fetch(20, max_wait_ms=0, done=[]) == []
    assert produce(setting.wire, setting.topic, batch(5)).error_code == E.NONE
    assert ben.fetch(20) == [(30, 34)]


def test_what_isn_t_done_in_time_goes_to_others_and_what_is_claimed_doesn_t(
    shared: Callable[[int], Shared],
) -> None:
    setting = shared(2)
    ann, ben = setting.member("ann", timeout_ms=SHORT_MS), setting.member("ben")
    assert ann.fetch(0) == [(0, 9)]
    assert ben.fetch(0) == [(10, 19)]
    assert setting.group.claim_soon(setting.topic, [(0, 3)]) == 4
    assert setting.group.claim_soon(setting.topic, [(8, 9)]) == 4
    # Nobody has said that; the coordinator knows.
    assert ben.fetch(20) == [(4, 7)]
    assert setting.group.claim_soon(setting.topic, [(4, 7)]) == 10
    assert ben.fetch(20, done=[(4, 7)], max_wait_ms=0) == []


def test_a_fetch_that_waits_gets_what_was_leased_when_its_time_is_over(
    shared: Callable[[int], Shared],
) -> None:
    setting = shared(1)
    assert setting.member("ann", timeout_ms=SHORT_MS).fetch(0) == [(0, 9)]
    assert setting.member("ben").fetch(0) == [(0, 9)]


def test_what_is_done_isn_t_the_member_s_any_more(shared: Callable[[int], Shared]) -> None:
    setting = shared(2)
    ann = setting.member("ann")
    assert ann.fetch(0) == [(0, 9)]
    setting.group.claim_soon(setting.topic, [(0, 4)])
    assert ann.fetch(0, done=[(0, 4)]) == [(5, 9)]
    assert ann.fetch(10) == [(10, 19)]


def test_what_is_said_done_of_others_or_never_dealt_is_refused(
    shared: Callable[[int], Shared],
) -> None:
    setting = shared(3)
    ann, ben = setting.member("ann"), setting.member("ben")
    assert ann.fetch(0) == [(0, 9)]
    assert ben.fetch(0) == [(10, 19)]
    assert ann.refusal(10, done=[(0, 4), (10, 12)]) is E.INVALID_RECORD_STATE
    assert ann.refusal(10, done=[(20, 21)]) is E.INVALID_REQUEST
    assert ann.refusal(10, done=[(0, 1 << 62)]) is E.INVALID_REQUEST
    assert ann.refusal(10, done=[(5, 2)]) is E.INVALID_REQUEST
    assert ann.refusal(10, done=[(5, 6), (2, 3)]) is E.INVALID_REQUEST
    assert ann.refusal(10, done=[(-9, -2)]) is E.INVALID_REQUEST
    for nonsense in (b"", b"\0", b"\2", encode_ranges([(0, 0)] * (DONE_MAX + 1))):
        assert ann.answer(10, done=nonsense).error_code == E.INVALID_REQUEST
    a_million = encode_uvarint(1_000_001) + bytes(900_000)
    assert ann.answer(10, done=a_million).error_code == E.INVALID_REQUEST
    assert ann.fetch(0) == [(0, 9)], "nothing of all that counts"


def test_whose_it_is_has_to_make_sense(shared: Callable[[int], Shared]) -> None:
    setting = shared(1)
    ann = setting.member("ann")
    valid = ann.cooperation
    for wrong, error in [
        (valid._replace(group=""), E.INVALID_GROUP_ID),
        (valid._replace(member=""), E.INVALID_REQUEST),
        (valid._replace(member="m" * 1_001), E.INVALID_REQUEST),
        (valid._replace(generation=-1), E.INVALID_REQUEST),
        (valid._replace(session_timeout_ms=0), E.INVALID_SESSION_TIMEOUT),
        (valid._replace(session_timeout_ms=1 << 30), E.INVALID_SESSION_TIMEOUT),
    ]:
        ann.cooperation = wrong
        assert ann.answer(0).error_code == error
    for content in (b"", b"\0", b"\2", encode_cooperation(valid) + b"x", b"\2\xff\2m" + bytes(9)):
        request = ann.request(0)
        request._tags = {COOPERATION_TAG: content}
        assert setting.wire.call(ApiKey.FETCH, VERSION, request).error_code == E.INVALID_REQUEST
    ann.cooperation = valid
    request = ann.request(0)
    request.topics[0].partitions[0]._tags = {KEY_RANGES_TAG: encode_ranges([(0, 9)])}
    assert setting.wire.call(ApiKey.FETCH, VERSION, request).error_code == E.INVALID_REQUEST
    request = ann.request(0)
    request.replica_id = 7
    assert setting.wire.call(ApiKey.FETCH, VERSION, request).error_code == E.INVALID_REQUEST
    assert ann.answer(0, session=(5, 3)).error_code == E.FETCH_SESSION_ID_NOT_FOUND
    assert ann.answer(0, session=(0, 0)).session_id == 0
    assert ann.fetch(0) == [(0, 9)]


def test_a_generation_that_is_over_gets_nothing(shared: Callable[[int], Shared]) -> None:
    setting = shared(2)
    ann, ben = setting.member("ann"), setting.member("ben")
    assert ann.fetch(0) == [(0, 9)]
    ben.cooperation = ben.cooperation._replace(generation=2)
    assert ben.fetch(0) == [(10, 19)]
    assert ann.refusal(0) is E.ILLEGAL_GENERATION
    ann.cooperation = ann.cooperation._replace(generation=2)
    assert ann.fetch(0) == [(0, 9)], "its leases stay"


def test_a_group_that_was_set_back_gets_records_again_in_its_next_generation(
    shared: Callable[[int], Shared],
) -> None:
    setting = shared(2)
    ann = setting.member("ann")
    assert ann.fetch(0) == [(0, 9)]
    assert setting.group.claim_soon(setting.topic, [(0, 9)]) == 10
    assert ann.fetch(10, done=[(0, 9)]) == [(10, 19)]
    setting.begin(3)
    ben = setting.member("ben")
    ben.cooperation = ben.cooperation._replace(generation=2)
    assert ben.fetch(3) == [(3, 9)]


def test_a_group_that_hasn_t_begun_hears_so(wire: Wire, new_topic: NewTopic) -> None:
    setting = Shared(wire, new_topic(accept_range_fetch="true"), 2)
    ann = setting.member("ann")
    assert ann.refusal(0, max_wait_ms=10_000) is E.OFFSET_OUT_OF_RANGE
    setting.begin(15)
    assert ann.fetch(15) == [(15, 19)]
    setting.begin(99)
    ann.cooperation = ann.cooperation._replace(group="another")
    Claimer(wire, "another").commit(setting.topic, 99)
    assert ann.refusal(0, max_wait_ms=10_000) is E.OFFSET_OUT_OF_RANGE


def test_a_topic_has_to_allow_it(wire: Wire, new_topic: NewTopic) -> None:
    setting = Shared(wire, new_topic(), 1)
    setting.begin()
    assert setting.member("ann").refusal(0) is E.TOPIC_RANGE_FETCH_NOT_ALLOWED
    setting.topic = "no-such-topic"
    assert setting.member("ann").refusal(0) is E.UNKNOWN_TOPIC_OR_PARTITION


def test_the_log_s_start_and_markers_are_in_somebody_s_lease(
    shared: Callable[[int], Shared],
) -> None:
    setting = shared(2)
    wire, topic = setting.wire, setting.topic
    transactional = Id(wire, f"t-{topic}").begin()
    assert transactional.add((topic, 0)) == [E.NONE]
    assert transactional.write(topic) is E.NONE
    ann, ben = setting.member("ann"), setting.member("ben")
    assert delete_before(wire, topic, 10) == E.NONE
    assert ann.fetch(0) == [(0, 19)]
    assert ben.fetch(0, max_wait_ms=0) == [(20, 20)]
    assert transactional.end(commit=False) is E.NONE
    assert ann.fetch(20) == [(21, 21)], "the marker"
    assert delete_before(wire, topic, -1) == E.NONE
    cat = setting.member("cat")
    cat.cooperation = cat.cooperation._replace(group=f"late-{topic}")
    Claimer(wire, f"late-{topic}").commit(topic, 5)
    data = cat.ask(5, max_wait_ms=10_000)
    assert decode_ranges(data._tags[ACQUIRED_TAG], 9) == [(5, 21)]
    assert not data.records, "there is nothing left; somebody has to claim it"


def delete_before(wire: Wire, topic: str, offset: int) -> int:
    kinds = m.DeleteRecordsRequest
    partition = kinds.DeleteRecordsPartition(0, offset)
    request = kinds([kinds.DeleteRecordsTopic(topic, [partition])], 10_000)
    answer = wire.call(ApiKey.DELETE_RECORDS, 2, request)
    return int(answer.topics[0].partitions[0].error_code)


def test_read_committed_waits_for_the_end_of_a_transaction(
    shared: Callable[[int], Shared],
) -> None:
    setting = shared(1)
    wire, topic = setting.wire, setting.topic
    transactional = Id(wire, f"c-{topic}").begin()
    assert transactional.add((topic, 0)) == [E.NONE]
    assert transactional.write(topic) is E.NONE
    ann = setting.member("ann")

    def committed(offset: int) -> Any:
        request = ann.request(offset, partition_max_bytes=1 << 20, max_wait_ms=200)
        request.isolation_level = 1
        answer = wire.call(ApiKey.FETCH, VERSION, request)
        return answer.responses[0].partitions[0]

    assert decode_ranges(committed(0)._tags[ACQUIRED_TAG], 9) == [(0, 9)]
    assert decode_ranges(committed(10)._tags[ACQUIRED_TAG], 9) == []
    assert transactional.end(commit=False) is E.NONE
    data = committed(10)
    assert decode_ranges(data._tags[ACQUIRED_TAG], 9) == [(10, 11)]
    assert [each.first_offset for each in data.aborted_transactions] == [10]


def test_below_level_2_the_tag_is_one_that_nobody_knows(
    wire: Wire, broker: Broker, shared: Callable[[int], Shared]
) -> None:
    setting = shared(2)

    def serve(level: int, how: int) -> None:
        kinds = m.UpdateFeaturesRequest
        update = kinds.FeatureUpdateKey(COOPERATIVE_FEATURE, level, False, how)
        answer = wire.call(ApiKey.UPDATE_FEATURES, 1, kinds(10_000, [update]))
        assert answer.error_code == E.NONE, answer.error_message

    serve(1, 2)
    try:
        data = setting.member("ann").ask(0, partition_max_bytes=1 << 20)
        assert data._tags is None
        assert sent(data) == list(range(20))
    finally:
        serve(2, 1)
    assert setting.member("ann").fetch(0) == [(0, 9)]


def test_plain_fetches_and_other_groups_have_all(shared: Callable[[int], Shared]) -> None:
    setting = shared(2)
    assert setting.member("ann").fetch(0) == [(0, 9)]
    assert sent(fetch(setting.wire, setting.topic, 0)) == list(range(20))
    ben = setting.member("ben")
    ben.cooperation = ben.cooperation._replace(group=f"other-{setting.topic}")
    assert Claimer(setting.wire, f"other-{setting.topic}").commit(setting.topic, 0) is E.NONE
    assert ben.fetch(0) == [(0, 9)]


def joined(setting: Shared) -> Cooperation:
    """As whom the one member of the group may fetch that has joined it, just now."""
    kinds = m.JoinGroupRequest
    request = kinds(
        setting.group.group_id,
        session_timeout_ms=LONG_MS,
        rebalance_timeout_ms=LONG_MS,
        protocol_type="consumer",
        protocols=[kinds.JoinGroupRequestProtocol("range", b"")],
    )
    answer = setting.wire.call(ApiKey.JOIN_GROUP, 6, request)
    assert answer.error_code == E.MEMBER_ID_REQUIRED
    request.member_id = answer.member_id
    answer = setting.wire.call(ApiKey.JOIN_GROUP, 6, request)
    assert answer.error_code == E.NONE
    return Cooperation(request.group_id, request.member_id, answer.generation_id, LONG_MS)


def left(setting: Shared, who: Cooperation) -> None:
    kinds = m.LeaveGroupRequest
    request = kinds(who.group, members=[kinds.MemberIdentity(who.member)])
    assert setting.wire.call(ApiKey.LEAVE_GROUP, 4, request).error_code == E.NONE


def test_a_generation_that_the_coordinator_doesn_t_know_isn_t_believed(
    shared: Callable[[int], Shared],
) -> None:
    """Anybody who may fetch for the group could hold all its members up."""
    setting = shared(3)
    ann, ben = setting.member("ann"), setting.member("ben")
    ann.cooperation = joined(setting)
    ben.cooperation = ben.cooperation._replace(generation=1_000)
    for _ in range(2):
        assert ben.refusal(0, max_wait_ms=10_000) is E.ILLEGAL_GENERATION
    assert ann.fetch(0) == [(0, 9)]
    assert ben.refusal(0, max_wait_ms=10_000) is E.ILLEGAL_GENERATION
    assert ann.fetch(10) == [(10, 19)]


def test_a_group_that_begins_anew_is_dealt_records(shared: Callable[[int], Shared]) -> None:
    """Who has deleted it begins with its first generation; the leases know a later one."""
    setting = shared(2)
    left(setting, joined(setting))
    ann, ben = setting.member("ann"), setting.member("ben")
    ann.cooperation = joined(setting)
    assert ann.fetch(0) == [(0, 9)]
    left(setting, ann.cooperation)
    request = m.DeleteGroupsRequest([ann.cooperation.group])
    assert setting.wire.call(ApiKey.DELETE_GROUPS, 2, request).results[0].error_code == E.NONE
    setting.begin()
    ben.cooperation = joined(setting)
    assert ben.cooperation.generation < ann.cooperation.generation
    assert ben.refusal(0) is E.ILLEGAL_GENERATION
    wait_until(lambda: ben.ask(0).error_code == E.NONE, "what the coordinator says")
    assert ben.fetch(0) == [(10, 19)], "leases stay"
