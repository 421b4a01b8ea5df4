"""Stock share consumers (KIP-932), librdkafka's and Java's, on three nodes; one is killed.

`make reference` runs the same against Apache Kafka.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import AcknowledgeType, Consumer, Message, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.apache_kafka import quorum_under_test, run_tool
from tests.quorums import Quorum, running
from tests.waiting import wait_until

RECORDS = 300
PARTITIONS = 3
TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def quorum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quorum]:
    made = quorum_under_test(
        tmp_path_factory.mktemp("quorum"), share_coordinator_state_topic_num_partitions=5
    )
    with running(made):
        yield made


@pytest.fixture
def topic(quorum: Quorum, request: pytest.FixtureRequest) -> str:
    """With RECORDS records whose values are their numbers; the group of its name reads them all."""
    name = request.node.name.removeprefix("test_")
    admin = AdminClient({"bootstrap.servers": quorum.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 3)])[name].result()
    run_tool(
        "kafka-configs",
        *("--bootstrap-server", quorum.bootstrap, "--alter"),
        *("--entity-type", "groups", "--entity-name", name),
        *("--add-config", "share.auto.offset.reset=earliest"),
    )
    fill(quorum, name)
    return name


def fill(quorum: Quorum, topic: str) -> None:
    producer = Producer({"bootstrap.servers": quorum.bootstrap})
    for number in range(RECORDS):
        producer.produce(topic, str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(TIMEOUT_S) == 0


def number_of(message: Message) -> int:
    assert message.error() is None
    return int(message.value() or b"")


class Member:
    """A share consumer that says of each record what `judge` does; a context manager."""

    def __init__(self, quorum: Quorum, group: str, judge: Callable[[int], AcknowledgeType]) -> None:
        self.delivered: Counter[int] = Counter()
        self.accepted: set[int] = set()
        self._judge = judge
        self._consumer = ShareConsumer(
            {
                "bootstrap.servers": quorum.bootstrap,
                "group.id": group,
                "share.acknowledgement.mode": "explicit",
            }
        )

    def __enter__(self) -> Member:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def subscribe(self, topic: str) -> None:
        self._consumer.subscribe([topic])

    def read(self) -> None:
        """Reads some, judges each, and notes what was accepted for good."""
        accepted: dict[tuple[str, int], set[int]] = {}
        for message in self._consumer.poll(0.5):
            number = number_of(message)
            self.delivered[number] += 1
            said = self._judge(number)
            self._consumer.acknowledge(message, said)
            if said == AcknowledgeType.ACCEPT:
                place = str(message.topic()), int(message.partition() or 0)
                accepted.setdefault(place, set()).add(number)
        for place, error in self._consumer.commit_sync(TIMEOUT_S).items():
            if error is None:
                self.accepted |= accepted.get((place.topic, place.partition), set())


def test_each_record_is_accepted_released_or_rejected(quorum: Quorum, topic: str) -> None:
    released: set[int] = set()

    def judge(number: int) -> AcknowledgeType:
        if number % 10 == 1:
            return AcknowledgeType.REJECT
        if number % 2 and number not in released:
            released.add(number)
            return AcknowledgeType.RELEASE
        return AcknowledgeType.ACCEPT

    wanted = {number for number in range(RECORDS) if number % 10 != 1}
    with Member(quorum, topic, judge) as member:
        member.subscribe(topic)
        wait_until(lambda: member.read() or member.accepted == wanted, "all are done", TIMEOUT_S)
        assert member.delivered == {
            number: 1 if number % 2 == 0 or number % 10 == 1 else 2 for number in range(RECORDS)
        }
    described = run_tool(
        "kafka-share-groups",
        "--bootstrap-server",
        quorum.bootstrap,
        "--describe",
        "--group",
        topic,
    )
    lines = [line.split() for line in described.splitlines() if line.startswith(topic)]
    assert [line[-1] for line in lines] == ["0"] * PARTITIONS, described


def test_two_members_and_a_consumer_read_a_topic_side_by_side(quorum: Quorum, topic: str) -> None:
    accept = lambda _: AcknowledgeType.ACCEPT  # noqa: E731
    consumer = Consumer(
        {
            "bootstrap.servers": quorum.bootstrap,
            "group.id": f"{topic}-whole",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    whole: Counter[int] = Counter()
    with Member(quorum, topic, accept) as one, Member(quorum, topic, accept) as two:
        one.subscribe(topic)
        two.subscribe(topic)

        def is_complete() -> bool:
            one.read()
            two.read()
            whole.update(map(number_of, consumer.consume(RECORDS, 0.1)))
            return len(one.accepted | two.accepted) == len(whole) == RECORDS

        wait_until(is_complete, "both groups have read all", TIMEOUT_S)
        assert one.delivered + two.delivered == whole == dict.fromkeys(range(RECORDS), 1)
    consumer.close()


def test_javas_console_reads_each_record_once(quorum: Quorum, topic: str) -> None:
    printed = run_tool(
        "kafka-console-share-consumer",
        *("--bootstrap-server", quorum.bootstrap, "--topic", topic, "--group", topic),
        *("--max-messages", str(RECORDS), "--timeout-ms", "30000"),
    )
    numbers = [int(line) for line in printed.splitlines() if line.isdigit()]
    assert sorted(numbers) == list(range(RECORDS))


def test_javas_testers_read_and_acknowledge_all(quorum: Quorum, topic: str) -> None:
    group = ("--bootstrap-server", quorum.bootstrap, "--topic", topic)
    said = run_tool(
        "verifiable-share-consumer",
        *(*group, "--group-id", topic, "--max-messages", str(RECORDS)),
        *("--acknowledgement-mode", "sync", "--offset-reset-strategy", "earliest"),
    )
    events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    acknowledged = [each for each in events if each["name"] == "offsets_acknowledged"]
    assert all(each["success"] for each in acknowledged)
    assert sum(each["count"] for each in acknowledged) == RECORDS
    fill(quorum, topic)
    said = run_tool(
        "kafka-share-consumer-perf-test",
        *(*group, "--group", topic, "--num-records", str(RECORDS), "--timeout", "20000"),
    )
    header, figures = (line.split(", ") for line in said.splitlines() if line.strip())
    assert dict(zip(header, figures, strict=True))["data.consumed.in.nMsg"] == str(RECORDS)


def test_what_was_accepted_does_not_come_again_when_a_leader_is_killed(
    quorum: Quorum, topic: str
) -> None:
    with Member(quorum, topic, lambda _: AcknowledgeType.ACCEPT) as member:
        member.subscribe(topic)
        wait_until(lambda: member.read() or member.accepted, "some are accepted", TIMEOUT_S)
        before = set(member.accepted)
        counts = Counter({number: member.delivered[number] for number in before})
        killed = quorum.leader_of(topic, 0)
        quorum.kill(killed)
        fill(quorum, topic)

        def is_complete() -> bool:
            member.read()
            counts = [member.delivered[number] for number in range(RECORDS)]
            return min(counts) >= 1 and sum(counts) >= 2 * RECORDS

        wait_until(is_complete, "all that was written is delivered", TIMEOUT_S)
        quorum.restart(killed)
        for number in before:
            # Once more at most: as the second record of that number.
            assert member.delivered[number] <= counts[number] + 1
