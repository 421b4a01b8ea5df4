"""Group coordination from outside: commits and fetches of offsets, and rebalances.

Every client here is librdkafka (confluent-kafka), the same for whichever broker it is given.

* Offsets: a client in turn, and several at once, each with a group of its own.
* Rebalances: 50 members subscribe at once; later one of them leaves. The time runs until every
  partition belongs to exactly one member and every member has some. Members learn of a rebalance by
  their heartbeats, so these are frequent: `SETTINGS` for the brokers, and the same interval for
  members of the classic protocol, where the member chooses it. The time of a classic group that
  joins includes `group.initial.rebalance.delay.ms`, 200 ms for every broker.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from kraftpy.testing.process import BrokerError
from tests.bench.measure import Round, Say

PARTITIONS = (1, 100)  # of a request
CLIENTS = 8
BENCH_S = 1.0
PROTOCOLS = ("classic", "consumer")
MEMBERS = 50
MEMBER_PARTITIONS = 100
HEARTBEAT_MS = 500
# Without it the first member is alone in a first generation, and the others wait for its heartbeat.
INITIAL_DELAY_MS = 200
TIMEOUT_S = 120.0
POLL_S = 0.02

SETTINGS = {
    "group_initial_rebalance_delay_ms": INITIAL_DELAY_MS,
    "group_consumer_heartbeat_interval_ms": HEARTBEAT_MS,
    "group_consumer_min_heartbeat_interval_ms": HEARTBEAT_MS,
}
"""What the brokers that are compared have in common; `_` stands for `.`."""

COORDINATOR_MOVES = frozenset(
    {
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    }
)

TopicOf = Callable[[int], contextlib.AbstractContextManager[str]]
Work = Callable[[Consumer, str, int, int], None]


def _client(bootstrap: str, **more: str | int) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"bench-{uuid.uuid4().hex[:8]}",
            "enable.auto.commit": False,
            "log_level": 0,
            **{key.replace("_", "."): value for key, value in more.items()},
        }
    )


# -- offsets


def offsets(bootstrap: str, topic_of: TopicOf, settle: Callable[[], object], say: Say) -> Round:
    """Requests per second; `topic_of(partitions)` makes a topic, `settle()` waits for replicas."""
    results: Round = {}
    for partitions in PARTITIONS:
        say(f"offset commits and fetches, {partitions} partitions")
        for clients in (1, CLIENTS):
            for verb in VERBS:
                with offset_work(bootstrap, topic_of, settle, verb, partitions, clients) as rate:
                    results[offsets_figure(verb, partitions, clients)] = rate(BENCH_S)
    return results


def offsets_figure(verb: str, partitions: int, clients: int) -> str:
    """The name of what `offset_work` measures."""
    several = f", {clients} clients" if clients > 1 else ""
    return f"offset {verb}, {partitions} partitions a request{several}"


@contextlib.contextmanager
def offset_work(
    bootstrap: str,
    topic_of: TopicOf,
    settle: Callable[[], object],
    verb: str,
    partitions: int,
    clients: int,
) -> Iterator[Callable[[float], float]]:
    """What gives requests per second of all clients together, each in turn, for so many seconds.

    They are connected, and have committed once.
    """
    with topic_of(partitions) as topic, contextlib.ExitStack() as stack:
        consumers = [_client(bootstrap) for _ in range(clients)]
        for consumer in consumers:
            stack.callback(consumer.close)
            consumer.assign([TopicPartition(topic, i, 0) for i in range(partitions)])
            _commit(consumer, topic, partitions, 0)  # finds the coordinator, creates its topic
        settle()
        yield lambda seconds: _rate(consumers, VERBS[verb], topic, partitions, seconds)


def _rate(
    clients: list[Consumer], work: Work, topic: str, partitions: int, seconds: float
) -> float:
    started_at = time.perf_counter()
    until = started_at + seconds

    def run(client: Consumer) -> int:
        done = 0
        while time.perf_counter() < until:
            done += 1
            work(client, topic, partitions, done)
        return done

    with ThreadPoolExecutor(len(clients)) as pool:
        requests = sum(pool.map(run, clients))
    return requests / (time.perf_counter() - started_at)


def _commit(client: Consumer, topic: str, partitions: int, offset: int) -> None:
    """Tries again while the coordinator moves, as an application does."""
    offsets = [TopicPartition(topic, i, offset) for i in range(partitions)]
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            answers = client.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() not in COORDINATOR_MOVES or time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)
        else:
            if any(answer.error for answer in answers):
                raise BrokerError(f"a commit was refused: {answers}")
            return


def _fetch(client: Consumer, topic: str, partitions: int, _: int) -> None:
    asked = [TopicPartition(topic, i) for i in range(partitions)]
    answers = client.committed(asked, timeout=TIMEOUT_S)
    if any(answer.error or answer.offset < 0 for answer in answers):
        raise BrokerError(f"committed offsets are missing: {answers}")


VERBS: dict[str, Work] = {"commits": _commit, "fetches": _fetch}


# -- rebalances


def rebalances(bootstrap: str, topic_of: TopicOf, say: Say) -> Round:
    """Seconds of both kinds of groups."""
    results: Round = {}
    for protocol in PROTOCOLS:
        say(f"rebalances of {MEMBERS} members, {protocol} protocol")
        with topic_of(MEMBER_PARTITIONS) as topic:
            results |= rebalance(bootstrap, topic, protocol)
    return results


def rebalance(bootstrap: str, topic: str, protocol: str) -> Round:
    """Seconds in which a new group joins, and in which it takes over from one that leaves."""
    with _members(bootstrap, protocol) as members:
        started_at = time.perf_counter()
        for member in members:
            member.subscribe([topic])
        _settle(members, topic)
        joined_at = time.perf_counter()
        members.pop().close()
        _settle(members, topic)
        left_at = time.perf_counter()
    joins, leaves = rebalance_figures(protocol)
    return {joins: joined_at - started_at, leaves: left_at - joined_at}


def rebalance_figures(protocol: str) -> tuple[str, str]:
    """The names of what `rebalance` measures."""
    return f"{MEMBERS} members join, {protocol}", f"one of {MEMBERS} members leaves, {protocol}"


@contextlib.contextmanager
def _members(bootstrap: str, protocol: str) -> Iterator[list[Consumer]]:
    """Connected, and not subscribed yet; all of one group."""
    # A member that an overloaded machine keeps from rejoining holds up the others for 10 s at most.
    own: dict[str, int] = {"max_poll_interval_ms": 10_000}
    if protocol == "classic":
        own |= {"heartbeat_interval_ms": HEARTBEAT_MS, "session_timeout_ms": 9_000}
    group = f"bench-{uuid.uuid4().hex[:8]}"
    members = [
        _client(bootstrap, group_id=group, group_protocol=protocol, **own) for _ in range(MEMBERS)
    ]
    try:
        for member in members:
            member.list_topics(timeout=TIMEOUT_S)
        yield members
    finally:
        with ThreadPoolExecutor(MEMBERS) as pool:
            list(pool.map(Consumer.close, members))


def _settle(members: list[Consumer], topic: str) -> None:
    """Serves the members until they share out all partitions."""
    everything = list(range(MEMBER_PARTITIONS))
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        owned = []
        for member in members:
            member.poll(0)
            owned.append([each.partition for each in member.assignment() if each.topic == topic])
        if all(owned) and sorted(partition for some in owned for partition in some) == everything:
            return
        if time.monotonic() > deadline:
            raise BrokerError(f"{len(members)} members don't share out the partitions: {owned}")
        time.sleep(POLL_S)
