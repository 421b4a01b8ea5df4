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

from tests.bench.measure import Round, Say
from tests.processes import BrokerError

REQUESTS = {1: 400, 100: 150}  # partitions in a request -> requests of a client in turn
CLIENTS = 8
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
    for partitions, requests in REQUESTS.items():
        say(f"offset commits and fetches, {partitions} partitions")
        what = f"{partitions} partitions a request"
        with topic_of(partitions) as topic, contextlib.ExitStack() as stack:
            clients = [_client(bootstrap) for _ in range(CLIENTS)]
            for client in clients:
                stack.callback(client.close)
                client.assign([TopicPartition(topic, i, 0) for i in range(partitions)])
                _commit(client, topic, partitions, 0)  # finds the coordinator, creates its topic
            settle()
            for several, suffix in (([clients[0]], ""), (clients, f", {CLIENTS} clients")):
                for verb, work in (("commits", _commit), ("fetches", _fetch)):
                    rate = _rate(several, work, topic, partitions, requests)
                    results[f"offset {verb}, {what}{suffix}"] = rate
    return results


Work = Callable[[Consumer, str, int, int], None]


def _rate(clients: list[Consumer], work: Work, topic: str, partitions: int, requests: int) -> float:
    """Requests per second of all clients together."""

    def run(client: Consumer) -> None:
        for offset in range(1, requests + 1):
            work(client, topic, partitions, offset)

    started_at = time.perf_counter()
    with ThreadPoolExecutor(len(clients)) as pool:
        list(pool.map(run, clients))
    return requests * len(clients) / (time.perf_counter() - started_at)


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


# -- rebalances


def rebalances(bootstrap: str, topic_of: TopicOf, say: Say) -> Round:
    """Seconds of both kinds of groups."""
    results: Round = {}
    for protocol in ("classic", "consumer"):
        say(f"rebalances of {MEMBERS} members, {protocol} protocol")
        with topic_of(MEMBER_PARTITIONS) as topic, _members(bootstrap, protocol) as members:
            started_at = time.perf_counter()
            for member in members:
                member.subscribe([topic])
            _settle(members, topic)
            joined_at = time.perf_counter()
            members.pop().close()
            _settle(members, topic)
            left_at = time.perf_counter()
        results[f"{MEMBERS} members join, {protocol}"] = joined_at - started_at
        results[f"one of {MEMBERS} members leaves, {protocol}"] = left_at - joined_at
    return results


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
