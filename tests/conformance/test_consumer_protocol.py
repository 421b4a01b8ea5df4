"""The consumer group protocol (KIP-848): stories told to Apache Kafka and to kraftpy end alike.

A record has how many partitions of each topic somebody may own, not which: Kafka promises balance
and not an order. Epochs count from the first that a member got: Kafka's groups have used up one
before, and one more with each regular expression. Words of errors are ours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing import Broker
from tests.apache_kafka import ApacheKafka
from tests.conformance.conversation import TIMEOUT_S, Conversation, tell
from tests.processes import running

BEAT = messages.ConsumerGroupHeartbeatRequest
PARTITIONS = 4
ADMIN: dict[str, Any] = {"member_id": None, "epoch": -1}


class Talk(Conversation):
    """A conversation of the members of a consumer group."""

    def __enter__(self) -> Self:
        super().__enter__()
        metadata = self.call(ApiKey.METADATA, 12, messages.MetadataRequest(topics=None))
        self.topics = {topic.topic_id: topic.name for topic in metadata.topics}
        self.first_epoch: int | None = None
        self.notes_epochs = True
        return self

    def since_first(self, epoch: int) -> int | None:
        """The epoch as the record has it."""
        if epoch <= 0:
            return epoch
        if self.first_epoch is None:
            self.first_epoch = epoch
        return epoch - self.first_epoch + 1 if self.notes_epochs else None

    def reader(self, member_id: str, **how: Any) -> Reader:
        return Reader(self, member_id, **how)

    def beat(self, *, version: int = 1, **fields: Any) -> Any:
        """One heartbeat, into the record; the answer."""
        answer = self.call(
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            version,
            BEAT(**{"group_id": self.group, **fields}),
        )
        assignment = None
        if answer.assignment is not None:
            assignment = sorted(
                (self.topics[each.topic_id], len(each.partitions))
                for each in answer.assignment.topic_partitions
            )
        words = (self.since_first(answer.member_epoch), answer.heartbeat_interval_ms, assignment)
        self.note("heartbeat", ErrorCode(answer.error_code).name, *words)
        return answer

    def describe_consumers(self, group: str | None = None) -> None:
        request = messages.ConsumerGroupDescribeRequest([self.group if group is None else group])
        (found,) = self.call(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, request).groups

        def counts(assignment: Any) -> list[tuple[str, int]]:
            return sorted((t.topic_name, len(t.partitions)) for t in assignment.topic_partitions)

        members = sorted(
            (
                member.member_id,
                member.instance_id or "",
                member.rack_id,
                self.since_first(member.member_epoch),
                member.client_id,
                member.client_host,
                member.subscribed_topic_names,
                member.subscribed_topic_regex,
                counts(member.assignment),
                counts(member.target_assignment),
                member.member_type,
            )
            for member in found.members
        )
        # A group without members has no assignment that could be as old as this or that.
        assigned_in = -1 if found.group_state == "Empty" else found.assignment_epoch
        epochs = self.since_first(found.group_epoch), self.since_first(assigned_in)
        head = (found.group_state, *epochs, found.assignor_name)
        self.note("described", ErrorCode(found.error_code).name, *head, members)

    def describe_classic(self, version: int) -> None:
        request = messages.DescribeGroupsRequest(groups=[self.group])
        (found,) = self.call(ApiKey.DESCRIBE_GROUPS, version, request).groups
        self.note("classic", ErrorCode(found.error_code).name, found.group_state, found.members)

    def commit_as(self, member_id: str, epoch: int, version: int = 9) -> None:
        """Commits for the first partition of topic "t"."""
        request = messages.OffsetCommitRequest
        partition = request.OffsetCommitRequestPartition(0, 5, -1, committed_metadata="")
        topic = request.OffsetCommitRequestTopic(name="t", partitions=[partition])
        answer = self.call(
            ApiKey.OFFSET_COMMIT,
            version,
            request(
                group_id=self.group,
                generation_id_or_member_epoch=epoch,
                member_id=member_id,
                topics=[topic],
            ),
        )
        self.note("committed", ErrorCode(answer.topics[0].partitions[0].error_code).name)

    def fetch_as(self, member_id: str | None, epoch: int, version: int = 9) -> None:
        request = messages.OffsetFetchRequest
        topic = request.OffsetFetchRequestTopics(name="t", partition_indexes=[0])
        group = request.OffsetFetchRequestGroup(self.group, member_id, epoch, [topic])
        (found,) = self.call(ApiKey.OFFSET_FETCH, version, request(groups=[group])).groups
        places = [(p.committed_offset, p.error_code) for t in found.topics for p in t.partitions]
        self.note("fetched", ErrorCode(found.error_code).name, places)


class Reader:
    """A member: it knows its epoch and what it owns, and gives up what it is told to."""

    def __init__(self, talk: Talk, member_id: str, **how: Any) -> None:
        self.talk = talk
        self.id = member_id
        self.epoch = 0
        self.owned: list[tuple[bytes, list[int]]] = []
        self.how = how

    def join(self, **how: Any) -> ErrorCode:
        """The first heartbeat, or the first after it was fenced."""
        self.epoch, self.owned = 0, []
        fields = {
            "rebalance_timeout_ms": 30_000,
            "subscribed_topic_names": ["t"],
            "topic_partitions": [],
        }
        return self._beat({**fields, **self.how, **how})

    def beat(self, **how: Any) -> ErrorCode:
        """A heartbeat that says only who and at which epoch, and what `how` says."""
        return self._beat(how)

    def confirm(self) -> ErrorCode:
        """A heartbeat that says what the member owns: as it was told last."""
        return self.beat(topic_partitions=[BEAT.TopicPartitions(*each) for each in self.owned])

    def leave(self, epoch: int = -1) -> ErrorCode:
        return self.beat(member_epoch=epoch)

    def settle(self, count: int) -> None:
        """Confirms until the member owns so many partitions.

        How it got there, from the last heartbeat on, is taken off the record.
        """
        deadline_s = time.monotonic() + TIMEOUT_S
        record = self.talk.record[:-1]
        while sum(len(indexes) for _, indexes in self.owned) != count:
            assert time.monotonic() < deadline_s, self.owned
            time.sleep(0.05)
            assert self.confirm() is ErrorCode.NONE
        assert self.confirm() is ErrorCode.NONE
        self.talk.record = record

    def _beat(self, how: dict[str, Any]) -> ErrorCode:
        fields = {"member_id": self.id, "member_epoch": self.epoch, **how}
        if "instance" in self.how:
            fields["instance_id"] = self.how["instance"]
        fields.pop("instance", None)
        answer = self.talk.beat(**fields)
        if not answer.error_code:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.owned = [
                    (each.topic_id, each.partitions) for each in answer.assignment.topic_partitions
                ]
        return ErrorCode(answer.error_code)


def create_topics(address: str, *topics: str) -> None:
    """Makes topics; on return group coordinators know them."""
    with Conversation(address, "first") as talk:
        talk.create_topics(*topics)
    # Kafka's coordinators hear of new topics a little later than its clients.
    for number in range(5):
        with Talk(address, f"first-{number}") as talk:
            one = talk.reader("m", subscribed_topic_names=[*topics])
            one.join()
            one.settle(len(topics) * PARTITIONS)
            one.leave()


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The addresses of both, with the same settings and topics."""
    # Kafka makes a new assignment at most once a second, unless it is told not to wait.
    kafka = ApacheKafka(
        tmp_path_factory.mktemp("kafka"),
        group_consumer_max_size=3,
        group_consumer_assignment_interval_ms=0,
    )
    with running(kafka), Broker(group_consumer_max_size=3) as ours:
        addresses = {"Apache Kafka": kafka.bootstrap, "kraftpy": ours.bootstrap}
        for address in addresses.values():
            create_topics(address, "t", "u", "other")
        yield addresses


def requests_that_make_no_sense(talk: Talk) -> None:
    one = talk.reader("m")
    one.join(group_id="")
    one.join(member_id="")
    one.join(instance_id="")
    one.join(rack_id="")
    one.join(rebalance_timeout_ms=-1)
    one.join(subscribed_topic_names=None)
    one.join(topic_partitions=None)
    one.join(topic_partitions=[BEAT.TopicPartitions(bytes(16), [1])])
    one.join(server_assignor="mine")
    one.join(server_assignor="")
    one.join(member_epoch=-3)
    one.join(member_epoch=-2)
    one.join(subscribed_topic_names=None, subscribed_topic_regex="(a")
    one.join(subscribed_topic_names=None, subscribed_topic_regex="(?=a)")
    one.beat(member_epoch=5)
    one.beat(member_epoch=-1)
    talk.describe_consumers()
    talk.describe_consumers("")
    talk.list()


def a_member_alone(talk: Talk) -> None:
    one = talk.reader("m", rack_id="r")
    one.join()
    one.beat()
    one.confirm()
    talk.describe_consumers()
    talk.list()
    one.beat(subscribed_topic_names=["t", "u", "nowhere"])
    one.beat()
    one.confirm()
    talk.describe_consumers()
    one.beat(subscribed_topic_names=["u"])
    one.confirm()
    one.beat()
    one.beat(server_assignor="range")
    one.beat()
    talk.describe_consumers()
    one.beat(server_assignor="mine")
    one.beat(subscribed_topic_names=[])
    one.confirm()
    one.beat()
    talk.describe_consumers()
    one.leave()
    talk.describe_consumers()
    talk.list()
    one.beat(member_epoch=3)
    one.leave()


def a_member_without_an_id(talk: Talk) -> None:
    answer = talk.beat(
        version=0,
        member_id="",
        member_epoch=0,
        rebalance_timeout_ms=5_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    talk.beat(member_id=answer.member_id, member_epoch=answer.member_epoch)
    talk.note(len(answer.member_id) > 10)


def a_subscription_that_comes_later(talk: Talk) -> None:
    # What the Java consumer does that looks for a java.util.regex.Pattern itself.
    one = talk.reader("m")
    one.join(subscribed_topic_names=[])
    one.beat(subscribed_topic_names=["t"])
    one.settle(PARTITIONS)
    talk.describe_consumers()
    two = talk.reader("m2")
    two.join(subscribed_topic_names=["nowhere"])
    for _ in range(2):
        one.confirm()
        two.confirm()
    talk.describe_consumers()


def members_come_and_go(talk: Talk) -> None:
    one, two, three = (talk.reader(name) for name in ("m1", "m2", "m3"))
    one.join()
    one.confirm()
    two.join()
    two.beat()
    one.beat()
    talk.describe_consumers()
    two.beat()
    one.confirm()
    talk.describe_consumers()
    two.beat()
    two.confirm()
    talk.describe_consumers()
    three.join()
    for _ in range(2):
        for member in (one, two, three):
            member.confirm()
    for member in (one, two, three):
        member.confirm()
    talk.describe_consumers()
    talk.reader("m4").join()
    one.leave()
    talk.describe_consumers()
    for member in (two, three, two, three):
        member.confirm()
    talk.describe_consumers()
    two.leave()
    three.leave()
    talk.describe_consumers()


def old_and_unknown_epochs(talk: Talk) -> None:
    one = talk.reader("m1")
    one.join()
    one.confirm()
    first = one.epoch
    one.beat(member_id="m9")
    one.beat(member_id="m9", member_epoch=-1)
    one.beat(member_epoch=first + 9)
    one.beat(subscribed_topic_names=["t", "u"])
    one.beat(member_epoch=first)
    owned = [BEAT.TopicPartitions(*each) for each in one.owned]
    # A member that missed an answer is told its assignment once more here; Kafka waits for a full
    # heartbeat.
    one.beat(member_epoch=first, topic_partitions=owned[:1])
    talk.record.pop()
    one.confirm()
    one.beat(member_epoch=first)
    one.join()
    one.confirm()
    one.beat(topic_partitions=[BEAT.TopicPartitions(bytes(16), [0])])
    one.beat(member_epoch=-2)


def static_members(talk: Talk) -> None:
    one = talk.reader("m1", instance="i1")
    other = talk.reader("m2", instance="i2")
    one.join()
    other.join()
    for member in (one, other, one, other):
        member.confirm()
    again = talk.reader("m3", instance="i1")
    again.join()
    again.beat(member_epoch=one.epoch)
    talk.reader("m1", instance="i3").beat(member_epoch=one.epoch)
    talk.reader("m3", instance="i3").beat(member_epoch=-2)
    again.leave(-2)
    one.leave(-2)
    talk.describe_consumers()
    again.join()
    again.confirm()
    talk.describe_consumers()
    one.beat(member_epoch=2)
    other.beat()
    again.leave(-1)
    for _ in range(2):
        other.confirm()
    talk.describe_consumers()


def patterns(talk: Talk) -> None:
    # Kafka looks for the topics of a pattern when it has answered, kraftpy before.
    talk.notes_epochs = False
    one = talk.reader("m1", subscribed_topic_names=None)
    one.join(subscribed_topic_regex="[tu]")
    one.settle(2 * PARTITIONS)
    talk.describe_consumers()
    one.beat(subscribed_topic_regex="(a")
    one.beat(subscribed_topic_regex="t", subscribed_topic_names=["other"])
    one.settle(2 * PARTITIONS)
    talk.describe_consumers()
    one.beat(subscribed_topic_regex="")
    one.settle(PARTITIONS)
    talk.describe_consumers()
    two = talk.reader("m2", subscribed_topic_names=[])
    two.join(subscribed_topic_regex="nothing")
    two.settle(0)
    two.beat(subscribed_topic_regex="other")
    two.beat()
    one.settle(PARTITIONS // 2)
    one.beat()
    two.settle(PARTITIONS // 2)
    talk.describe_consumers()


def range_assignor(talk: Talk) -> None:
    members = [talk.reader(f"m{n}", server_assignor="range") for n in range(3)]
    for member in members:
        member.join(subscribed_topic_names=["t", "u"])
    for member in members * 3:
        member.confirm()
    talk.describe_consumers()


def offsets_of_members(talk: Talk) -> None:
    talk.commit_as("m1", 1)
    talk.commit_as("m1", 1, version=8)
    talk.fetch_as(None, -1)
    talk.fetch_as("m1", 1)
    one = talk.reader("m1")
    one.join()
    one.confirm()
    talk.commit_as("", -1)
    talk.commit_as("", -1, version=8)
    talk.commit_as("m1", one.epoch, version=8)
    talk.commit_as("m1", one.epoch + 1)
    talk.commit_as("m9", one.epoch)
    talk.commit_as("m1", -1)
    talk.fetch_as("m1", one.epoch)
    talk.commit_as("m1", one.epoch)
    talk.fetch_as("m1", one.epoch)
    talk.fetch_as(None, -1)
    talk.fetch_as(None, -1, version=8)
    talk.fetch_as("", -1)
    talk.fetch_as("m1", one.epoch - 1)
    talk.fetch_as("m1", one.epoch + 1)
    talk.fetch_as("m9", one.epoch)
    talk.delete_offsets("t", "u")
    talk.delete()
    one.leave()
    talk.commit_as("", -1)
    talk.commit_as("m1", one.epoch)
    talk.fetch_as("m1", 3)
    talk.fetch_as(None, -1)
    talk.delete_offsets("t", "u")
    talk.delete()
    talk.delete()
    talk.list()


def classic_requests(talk: Talk) -> None:
    one = talk.reader("m1")
    one.join()
    one.confirm()
    talk.describe_classic(5)
    talk.describe_classic(6)
    stranger = talk.member(protocol_type="connect", protocols={"p": b""})
    stranger.join()
    stranger.beat(member_id="m1", generation=one.epoch)
    stranger.sync(member_id="m1", generation=one.epoch)
    talk.list((), ("consumer",))
    talk.list((), ("Classic",))
    talk.list(("stable",), ("CONSUMER", "classic"))
    talk.list(("Empty", "Assigning", "Reconciling", "Dead"))
    talk.list((), ("nonsense",))
    talk.list(("nonsense",))


def classic_members_and_others(talk: Talk) -> None:
    """Members of either protocol in one group (KIP-848, "Upgrade and downgrade")."""
    old = talk.member()
    old.enter()
    old.sync({old.id: b""})
    one = talk.reader("m1")
    one.join()
    talk.list()
    talk.describe_classic(6)
    talk.note(old.heartbeat().name)
    talk.commit(1, old.generation, old.id)
    one.beat()
    one.leave()
    talk.list()


def groups_of_other_kinds(talk: Talk) -> None:
    stranger = talk.member(protocol_type="connect", protocols={"p": b""})
    stranger.enter()
    talk.reader("m1").join()
    talk.describe_consumers()
    stranger.leave()
    talk.reader("m1").join()
    talk.describe_consumers()


def offsets_before_members(talk: Talk) -> None:
    talk.commit_as("", -1)
    talk.describe_consumers()
    one = talk.reader("m1")
    one.join()
    one.confirm()
    talk.fetch_as("m1", one.epoch)
    talk.describe_consumers()


STORIES = (
    requests_that_make_no_sense,
    a_member_alone,
    a_member_without_an_id,
    a_subscription_that_comes_later,
    members_come_and_go,
    old_and_unknown_epochs,
    static_members,
    patterns,
    range_assignor,
    offsets_of_members,
    classic_requests,
    classic_members_and_others,
    groups_of_other_kinds,
    offsets_before_members,
)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_a_story_ends_alike(story: Callable[[Talk], None], brokers: dict[str, str]) -> None:
    records = tell(Talk, story, brokers)
    assert records["kraftpy"] == records["Apache Kafka"]
