"""Groups between both protocols (KIP-848): stories told to Apache Kafka and to kraftpy end alike.

A record has what each was told, and how many partitions everybody has in the end: Kafka promises
balance, not who has to give something up, nor who leads a group that was downgraded. One answer
differs on purpose, and no story asks for it: a static classic member that takes the place of the
last member of the consumer protocol starts a rebalance here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kraftpy.protocol import messages
from kraftpy.protocol.codec import decode_versioned, encode_versioned
from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing import Broker
from tests.apache_kafka import ApacheKafka
from tests.conformance.conversation import TIMEOUT_S, Conversation, Member, tell
from tests.conformance.test_consumer_protocol import Reader, Talk, create_topics
from tests.processes import running

SUBSCRIPTION = messages.ConsumerProtocolSubscription
ASSIGNMENT = messages.ConsumerProtocolAssignment


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The addresses of both, with the same settings and topics."""
    kafka = ApacheKafka(
        tmp_path_factory.mktemp("kafka"),
        group_consumer_max_size=3,
        group_consumer_assignment_interval_ms=0,
    )
    ours = Broker(group_consumer_max_size=3, group_initial_rebalance_delay_ms=0)
    with running(kafka), ours:
        addresses = {"Apache Kafka": kafka.bootstrap, "kraftpy": ours.bootstrap}
        for address in addresses.values():
            create_topics(address, "t", "u")
        yield addresses


class Classic(Member):
    """A member of the classic protocol; `cooperative` ones say what they own when they join."""

    def __init__(self, talk: Conversation, *, cooperative: bool = False, **how: Any) -> None:
        super().__init__(talk, **how)
        self.owned: list[tuple[str, list[int]]] = []
        self.protocol = "cooperative-sticky" if cooperative else "range"
        self.cooperative = cooperative

    def ask_join(self, *, topics: tuple[str, ...] = ("t",), **how: Any) -> None:
        owned = self.owned if self.cooperative else []
        metadata = encode_versioned(
            "ConsumerProtocolSubscription",
            1,
            SUBSCRIPTION(
                topics=list(topics),
                owned_partitions=[SUBSCRIPTION.TopicPartition(*each) for each in owned],
            ),
        )
        super().ask_join(**{"protocols": {self.protocol: metadata}, **how})

    def ask_sync(self, assignments: Any = None, **how: Any) -> None:
        super().ask_sync(assignments, **{"protocol_name": self.protocol, **how})

    def hear(self) -> ErrorCode:
        record = len(self.talk.record)
        error = super().hear()
        what, *words = self.talk.record.pop(record)
        if what == "joined":
            words = words[1:3]
        elif what == "synced":
            data = words.pop()
            assert isinstance(data, bytes)
            if error is ErrorCode.NONE:
                _, given = decode_versioned("ConsumerProtocolAssignment", data)
                self.owned = [(t.topic, t.partitions) for t in given.assigned_partitions]
        self.talk.note(what, *words)
        return error


def settle(talk: Talk, *members: Classic | Reader) -> None:
    """All do what clients do until they own the four partitions of the topic and are left alone.

    That is off the record; what they own then is on it.
    """
    deadline_s = time.monotonic() + TIMEOUT_S
    record = list(talk.record)
    while True:
        settled = [is_settled(member) for member in members]
        if all(settled) and sum(map(count, members)) == 4:
            break
        assert time.monotonic() < deadline_s, [member.owned for member in members]
        time.sleep(0.02)
    talk.record = record
    talk.note("settled", sorted(map(count, members)))


def count(member: Classic | Reader) -> int:
    return sum(len(indexes) for _, indexes in member.owned)


def is_settled(member: Classic | Reader) -> bool:
    """Takes a step; whether there was none to take."""
    if isinstance(member, Reader):
        owned = count(member)
        assert member.confirm() is ErrorCode.NONE
        return count(member) == owned
    error = member.heartbeat()
    if error is ErrorCode.REBALANCE_IN_PROGRESS and member.join() is ErrorCode.NONE:
        member.sync()
    return error is ErrorCode.NONE


def given(**partitions: list[int]) -> bytes:
    rows = [ASSIGNMENT.TopicPartition(name, indexes) for name, indexes in partitions.items()]
    return encode_versioned("ConsumerProtocolAssignment", 1, ASSIGNMENT(assigned_partitions=rows))


def two_classic(talk: Talk, **how: Any) -> tuple[Classic, Classic]:
    """A stable classic group of two members with half of the topic each."""
    leader, follower = Classic(talk, **how), Classic(talk, **how)
    leader.enter()
    follower.join()
    follower.ask_join()
    leader.ask_join()
    follower.hear()
    leader.hear()
    leader.ask_sync({leader.id: given(t=[0, 1]), follower.id: given(t=[2, 3])})
    follower.ask_sync()
    leader.hear()
    follower.hear()
    return leader, follower


def an_upgrade_of_eager_members(talk: Talk) -> None:
    leader, follower = two_classic(talk)
    one = talk.reader("new")
    one.join()
    talk.list()
    talk.describe()
    leader.beat()
    follower.sync()
    talk.commit(1, leader.generation, leader.id)
    leader.join()
    leader.sync()
    follower.join()
    follower.sync()
    settle(talk, one, leader, follower)
    leader.beat()
    follower.beat()
    talk.fetch()


def an_upgrade_of_cooperative_members(talk: Talk) -> None:
    leader, follower = two_classic(talk, cooperative=True)
    one = talk.reader("new")
    one.join()
    for member in (leader, follower):
        member.beat()
        member.join()
        member.sync()
    settle(talk, one, leader, follower)
    talk.list()


def a_downgrade(talk: Talk) -> None:
    leader, follower = two_classic(talk)
    one = talk.reader("new")
    one.join()
    settle(talk, one, leader, follower)
    one.leave()
    talk.list()
    leader.beat()
    one.beat()
    leader.ask_join()
    follower.beat()
    follower.ask_join()
    leader.hear()
    follower.hear()
    talk.list()


def members_that_are_taken_out(talk: Talk) -> None:
    leader, follower = two_classic(talk)
    one = talk.reader("new")
    one.join()
    settle(talk, one, leader, follower)
    talk.leave((leader.id, None), ("ghost", None), (leader.id, None))
    leader.beat()
    leader.join()
    leader.leave()
    settle(talk, one, follower)
    talk.leave(("new", None))
    talk.list()
    follower.beat()
    follower.leave()
    talk.list()


def all_members_leave(talk: Talk) -> None:
    leader, follower = two_classic(talk)
    one = talk.reader("new")
    one.join()
    leader.leave()
    follower.leave()
    settle(talk, one)
    talk.list()
    one.leave()
    talk.list()


def a_classic_member_joins(talk: Talk) -> None:
    one = talk.reader("m")
    one.join()
    classic = Classic(talk)
    classic.join()
    classic.join()
    classic.sync()
    settle(talk, one, classic)
    classic.beat()
    classic.join()
    classic.sync()
    classic.beat()
    one.confirm()
    stranger = Classic(talk, member_id="stranger")
    stranger.join()
    Classic(talk).join()
    talk.list()


def requests_that_do_not_fit(talk: Talk) -> None:
    one = talk.reader("m")
    one.join()
    classic = Classic(talk)
    classic.join(protocol_type="connect")
    classic.join(protocols={})
    classic.join(session_ms=1)
    classic.enter()
    classic.sync()
    now = classic.generation
    for generation in (now - 1, now + 1, -1):
        classic.beat(generation=generation)
        classic.sync(generation=generation)
        talk.commit(1, generation, classic.id)
    for how in ({"member_id": "x"}, {"instance": "i"}, {"member_id": "m"}):
        classic.beat(**how)
        classic.sync(**how)
    classic.sync(protocol_type="x")
    classic.sync(protocol_name="x")
    classic.sync(version=4)
    classic.join(instance="i")
    other = Classic(talk)
    other.join(protocols={"other": b"\0\1\0\0\0\0\0\0\0\0\0\0\0\0"})
    talk.commit(2)
    talk.commit(3, now, "x")
    talk.commit(4, classic.generation, classic.id)
    talk.commit_as("m", one.epoch)
    talk.fetch()
    talk.delete()
    talk.delete_offsets("t")
    talk.describe()


def static_classic_members(talk: Talk) -> None:
    one = talk.reader("m")
    one.join()
    classic = Classic(talk, instance="i")
    classic.join()
    classic.sync()
    settle(talk, one, classic)
    again = Classic(talk, instance="i")
    again.join()
    again.sync()
    classic.beat()
    classic.sync()
    classic.join()
    talk.leave((classic.id, "i"), ("", "nobody"))
    talk.leave(("", "i"))
    again.beat()
    settle(talk, one)


def a_static_member_changes_its_protocol(talk: Talk) -> None:
    one = talk.reader("m")
    one.join()
    classic = Classic(talk, instance="i")
    classic.join()
    classic.sync()
    settle(talk, one, classic)
    new = talk.reader("n", instance="i")
    new.join()
    classic.beat()
    back = Classic(talk, instance="i")
    back.join()
    back.sync()
    new.beat()


def an_empty_classic_group(talk: Talk) -> None:
    classic = Classic(talk)
    classic.enter()
    classic.sync({classic.id: given(t=[0])})
    talk.commit(7, classic.generation, classic.id)
    classic.leave()
    one = talk.reader("m")
    one.join()
    talk.list()
    talk.fetch()
    one.leave()
    classic.join()
    classic.id = ""
    classic.enter()
    talk.list()
    talk.fetch()


def groups_that_can_not_become_consumer_groups(talk: Talk) -> None:
    worker = Member(talk, protocol_type="connect", protocols={"sessioned": b"x"})
    worker.enter()
    one = talk.reader("m")
    one.join()
    one.beat(member_epoch=3)
    one.leave()
    worker.beat()


def a_rebalance_that_an_upgrade_cuts_short(talk: Talk) -> None:
    leader, follower = two_classic(talk)
    leader.ask_join()
    one = talk.reader("m")
    one.join()
    leader.hear()
    follower.beat()
    leader.join()
    leader.sync()
    follower.join()
    follower.sync()
    settle(talk, one, leader, follower)
    talk.list()


def classic_members_that_do_nothing(talk: Talk) -> None:
    leader, follower = two_classic(talk, rebalance_ms=2_000)
    one = talk.reader("m")
    one.join()
    leader.beat()
    deadline_s = time.monotonic() + TIMEOUT_S
    while leader.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS:
        assert time.monotonic() < deadline_s
        assert follower.heartbeat() in (
            ErrorCode.REBALANCE_IN_PROGRESS,
            ErrorCode.UNKNOWN_MEMBER_ID,
        )
        time.sleep(0.1)
    leader.beat()
    talk.list()


STORIES = [
    an_upgrade_of_eager_members,
    an_upgrade_of_cooperative_members,
    a_downgrade,
    members_that_are_taken_out,
    all_members_leave,
    a_classic_member_joins,
    requests_that_do_not_fit,
    static_classic_members,
    a_static_member_changes_its_protocol,
    an_empty_classic_group,
    groups_that_can_not_become_consumer_groups,
    a_rebalance_that_an_upgrade_cuts_short,
    classic_members_that_do_nothing,
]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_it_ends_as_with_apache_kafka(
    story: Callable[[Talk], None], brokers: dict[str, str]
) -> None:
    records = tell(Talk, story, brokers)
    assert records["kraftpy"] == records["Apache Kafka"]
    assert records["kraftpy"]
