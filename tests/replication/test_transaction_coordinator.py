"""The transaction coordinator on three nodes: what it decided is written everywhere, once decided.

Its partitions are moved, their leaders killed, and all nodes at once, while producers of
version 0 begin and end transactions. Every answer of a coordinator counts; what wasn't answered may
be either way, but the same way in each partition.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode as E
from kraftpy.protocol.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
)
from kraftpy.protocol.records import read_end_txn_marker, split_batches
from kraftpy.testing import Cluster
from tests.server.wire import Closed, Wire
from tests.waiting import wait_until

from .support import leader_of, log_bytes
from .takeovers import kill_all, kill_leader, move, stop_leader

TOPIC = "t"
PARTITIONS = 6
COORDINATORS = "__transaction_state"
TIMEOUT_MS = 20_000
ASK_TIMEOUT_S = 10.0

Producer = tuple[int, int]


class Gone(Exception):
    """There is no answer."""


class Client:
    """Asks whichever node coordinates an id."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self._wire: Wire | None = None

    def ask(self, key: ApiKey, version: int, request: Any) -> Any:
        """The coordinator's answer; raises Gone."""
        try:
            if self._wire is None:
                self._wire = self._connect()
            return self._wire.call(key, version, request)
        except (Closed, OSError) as error:
            self.forget()
            raise Gone from error

    def forget(self) -> None:
        """The coordinator may be another one now."""
        if self._wire is not None:
            self._wire.sock.close()
        self._wire = None

    def _connect(self) -> Wire:
        nodes = [node for node in self._cluster.nodes.values() if node.running]
        for node in nodes:
            try:
                with Wire(node.host, node.port, timeout_s=ASK_TIMEOUT_S) as wire:
                    request = FindCoordinatorRequest(key=self._name, key_type=1)
                    found = wire.call(ApiKey.FIND_COORDINATOR, 3, request)
            except (Closed, OSError):
                continue
            if found.error_code == E.NONE:
                return Wire(found.host, found.port, timeout_s=ASK_TIMEOUT_S)
        raise Gone


class Transactor(threading.Thread):
    """One transactional id: begins and ends transactions, and notes what it was told.

    `results` are those of the markers' epochs, `parts` the partitions of each.
    """

    def __init__(self, cluster: Cluster, name: str, stopped: threading.Event) -> None:
        super().__init__()
        self.name_of_id = name
        self.results: dict[Producer, bool] = {}
        self.parts: dict[Producer, set[int]] = {}
        self.wrong: list[str] = []
        self._client = Client(cluster, name)
        self._stopped = stopped
        self._chance = random.Random(name)

    def run(self) -> None:
        try:
            while not self._stopped.is_set():
                try:
                    self._produce(self._begin())
                except Gone:
                    self._stopped.wait(0.05)
        finally:
            self._client.forget()

    def _begin(self) -> Producer:
        while True:
            answer = self._ask(
                ApiKey.INIT_PRODUCER_ID, 4, InitProducerIdRequest(self.name_of_id, TIMEOUT_MS)
            )
            if answer.error_code == E.NONE:
                return answer.producer_id, answer.producer_epoch

    def _produce(self, producer: Producer) -> None:
        """One transaction: the next one has the same epoch, so that results can't be told."""
        parts = set(self._chance.sample(range(PARTITIONS), self._chance.randint(1, 3)))
        for part in parts:
            if self._add(producer, part) is not E.NONE:
                return
        is_commit = self._chance.random() < 0.7
        request = EndTxnRequest(self.name_of_id, *producer, committed=is_commit)
        if self._ask(ApiKey.END_TXN, 3, request).error_code == E.NONE:
            self.results[producer] = is_commit
            self.parts[producer] = parts

    def _add(self, producer: Producer, part: int) -> E:
        kinds = AddPartitionsToTxnRequest
        topics = [kinds.AddPartitionsToTxnTopic(TOPIC, [part])]
        request = kinds(
            v3_and_below_transactional_id=self.name_of_id,
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=topics,
        )
        answer = self._ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, request)
        (found,) = answer.results_by_topic_v3_and_below
        return E(found.results_by_partition[0].partition_error_code)

    def _ask(self, key: ApiKey, version: int, request: Any) -> Any:
        """The answer, again and again while that says to try again."""
        while not self._stopped.is_set():
            answer = self._client.ask(key, version, request)
            error = _first_error(answer)
            if error in (E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE):
                self._client.forget()
                raise Gone
            if error not in (E.CONCURRENT_TRANSACTIONS, E.COORDINATOR_LOAD_IN_PROGRESS):
                if error not in (E.NONE, E.PRODUCER_FENCED, E.INVALID_TXN_STATE):
                    self.wrong.append(f"{key.name}: {error.name}")
                return answer
            self._stopped.wait(0.01)
        raise Gone


def _first_error(answer: Any) -> E:
    if isinstance(answer, AddPartitionsToTxnResponse):
        results = answer.results_by_topic_v3_and_below
        return E(results[0].results_by_partition[0].partition_error_code)
    return E(answer.error_code)


class Transactions:
    """A cluster that serves transactions, and producers of them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._rounds = 0

    @contextmanager
    def running(self) -> Iterator[list[Transactor]]:
        """Producers go on meanwhile; then what they were told is compared with the logs."""
        self._rounds += 1
        stopped = threading.Event()
        all_of_them = [
            Transactor(self.cluster, f"round-{self._rounds}-{n}", stopped) for n in range(8)
        ]
        for each in all_of_them:
            each.start()
        try:
            self.wait_progress(all_of_them)
            yield all_of_them
            self.wait_progress(all_of_them)
        finally:
            stopped.set()
            for each in all_of_them:
                each.join()
        for each in all_of_them:
            assert each.wrong == []
            wait_until(
                lambda each=each: self._is_at_rest(each.name_of_id), f"{each.name_of_id} ends"
            )
        self._check(all_of_them)

    def wait_progress(self, all_of_them: list[Transactor]) -> None:
        counts = [len(each.results) for each in all_of_them]
        wait_until(
            lambda: all(
                len(each.results) > count + 5
                for each, count in zip(all_of_them, counts, strict=True)
            ),
            "every producer goes on",
        )

    def _is_at_rest(self, name: str) -> bool:
        client = Client(self.cluster, name)
        try:
            request = DescribeTransactionsRequest([name])
            (found,) = client.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, request).transaction_states
            if found.transaction_state == "Ongoing":  # its producer has stopped amid it
                client.ask(ApiKey.INIT_PRODUCER_ID, 4, InitProducerIdRequest(name, TIMEOUT_MS))
        except Gone:
            return False
        finally:
            client.forget()
        return found.error_code == E.NONE and found.transaction_state in (
            "Empty",
            "CompleteCommit",
            "CompleteAbort",
        )

    def _check(self, all_of_them: list[Transactor]) -> None:
        marked = self._markers()
        for parts in marked.values():
            results = {result for of_part in parts.values() for result in of_part}
            assert len(results) == 1, "one result, wherever it is written"
        for each in all_of_them:
            for producer, is_commit in each.results.items():
                found = marked[producer]
                assert each.parts[producer] <= found.keys(), "ended, and not everywhere"
                assert {result for of_part in found.values() for result in of_part} == {is_commit}

    def _markers(self) -> dict[Producer, dict[int, set[bool]]]:
        """The results in the logs of the partitions, by what the markers say of their producer."""
        marked: dict[Producer, dict[int, set[bool]]] = defaultdict(lambda: defaultdict(set))
        for index in range(PARTITIONS):
            data = log_bytes(self.cluster, leader_of(self.cluster, TOPIC, index), TOPIC, index)
            for position, header in split_batches(data):
                marker = read_end_txn_marker(data, position)
                assert header.is_control
                assert marker is not None
                marked[header.producer_id, header.producer_epoch][index].add(marker.committed)
        return marked


@pytest.fixture(scope="module")
def transactions() -> Iterator[Transactions]:
    with Cluster(3) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(timeout=20)
        yield Transactions(cluster)


def test_who_coordinates_is_killed(transactions: Transactions) -> None:
    with transactions.running() as producers:
        kill_leader(
            transactions.cluster, COORDINATORS, lambda: transactions.wait_progress(producers)
        )


def test_a_partition_moves(transactions: Transactions) -> None:
    with transactions.running() as producers:
        move(transactions.cluster, COORDINATORS, lambda: transactions.wait_progress(producers))


def test_a_node_stops_in_order(transactions: Transactions) -> None:
    with transactions.running() as producers:
        stop_leader(
            transactions.cluster, COORDINATORS, 0, lambda: transactions.wait_progress(producers)
        )


def test_all_nodes_are_killed_and_everything_is_read_again(transactions: Transactions) -> None:
    with transactions.running():
        kill_all(transactions.cluster)
