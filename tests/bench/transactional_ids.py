"""`make bench ARGS=transactional-ids`: a hundred thousand transactional ids, opened and left.

Each opens a transaction with one partition, and nobody ends it. The node is killed and started
again while all of them are open, and once more when all are overdue. Of each part are told: how
long it took, the longest slice on the broker's event loop, in CPU time (by the clock a busy machine
stretches it), and the p99 of somebody who asks for metadata every 10 ms; and by how many bytes the
broker grew for each id.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.testing.process import BrokerError
from tests.bench import builds, figures
from tests.bench.amplification import Lagging, Probe, memory_mib
from tests.bench.measure import KIB, Say
from tests.bench.probe import percentile
from tests.processes import split_address
from tests.server.wire import Wire

IDS = 100_000
PARTITIONS = 50
CONNECTIONS = 4
AHEAD = 100
TOPIC = "left"
TIMEOUT_MS = 300_000
PATIENCE_S = 300.0
POLL_S = 0.1


class Row(NamedTuple):
    """What one part took."""

    name: str
    seconds: float
    slice_s: float
    clock_s: float
    probe_s: float


class _Client(threading.Thread):
    """One connection that makes some of the ids, and opens their transactions."""

    def __init__(self, host: str, port: int, names: Sequence[str]) -> None:
        super().__init__(daemon=True)
        self._address = host, port
        self._producer_ids = dict.fromkeys(names, -1)
        self._work: Callable[[Wire, list[str]], None] = self._make
        self.error: Exception | None = None

    def then_open(self) -> _Client:
        """One that goes on from here."""
        client = _Client(*self._address, ())
        client._producer_ids = self._producer_ids
        client._work = client._open
        return client

    def run(self) -> None:
        names = list(self._producer_ids)
        try:
            with Wire(*self._address, timeout_s=PATIENCE_S) as wire:
                for start in range(0, len(names), AHEAD):
                    self._work(wire, names[start : start + AHEAD])
        except Exception as error:
            self.error = error

    def _make(self, wire: Wire, names: list[str]) -> None:
        asked = [messages.InitProducerIdRequest(name, TIMEOUT_MS) for name in names]
        answers = _each(wire, ApiKey.INIT_PRODUCER_ID, 4, asked)
        _check(each.error_code for each in answers)
        self._producer_ids.update(zip(names, (each.producer_id for each in answers), strict=True))

    def _open(self, wire: Wire, names: list[str]) -> None:
        add = messages.AddPartitionsToTxnRequest
        asked = [add([], name, self._producer_ids[name], 0, [_topic(name)]) for name in names]
        answers = _each(wire, ApiKey.ADD_PARTITIONS_TO_TXN, 3, asked)
        _check(
            each.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            for each in answers
        )


def _topic(name: str) -> messages.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic:
    index = int(name.rpartition("-")[2]) % PARTITIONS
    return messages.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(TOPIC, [index])


def _each(wire: Wire, key: ApiKey, version: int, requests: Sequence[Any]) -> list[Any]:
    for request in requests:
        wire.send(key, version, request)
    return [wire.receive(key, version)[1] for _ in requests]


def _check(errors: Any) -> None:
    for error in errors:
        if error:
            raise BrokerError(ErrorCode(error).name)


def _run(clients: Sequence[_Client]) -> None:
    for client in clients:
        client.start()
    for client in clients:
        client.join()
        if client.error is not None:
            raise client.error


class _Bench:
    def __init__(self, folder: Path, ids: int, say: Say) -> None:
        self._ids = ids
        self._say = say
        self._lags = folder / "lags"
        os.environ[builds.LAGS] = str(self._lags)
        self._node = Lagging(folder)
        self.rows: list[Row] = []

    @property
    def _address(self) -> tuple[str, int]:
        return split_address(self._node.bootstrap)

    def run(self) -> tuple[float, float]:
        """Bytes of memory that an id takes, without and with a transaction that is open."""
        node = self._node
        try:
            node.start()
            self._prepare()
            idle_mib = memory_mib(node.pid, "VmRSS")
            names = [f"id-{number:07d}" for number in range(self._ids)]
            clients = [_Client(*self._address, names[n::CONNECTIONS]) for n in range(CONNECTIONS)]
            self._part("made", lambda: _run(clients))
            made_mib = memory_mib(node.pid, "VmRSS") - idle_mib
            self._part("opened", lambda: _run([each.then_open() for each in clients]))
            opened_at = time.monotonic()
            opened_mib = memory_mib(node.pid, "VmRSS") - idle_mib
            node.kill()
            node.start()
            self._part("loaded again, all open", lambda: self._reach(self._ids, 0))
            node.kill()
            time.sleep(max(0.0, opened_at + TIMEOUT_MS / 1000 - time.monotonic()))
            node.start()
            self._part("loaded again and aborted, all overdue", lambda: self._reach(0, self._ids))
        finally:
            node.stop()
        return made_mib * KIB * KIB / self._ids, opened_mib * KIB * KIB / self._ids

    def _part(self, name: str, work: Callable[[], None]) -> None:
        # What a node does that was started again it may do before it can be told to forget.
        if "again" not in name:
            builds.forget_lags(self._node.pid, self._lags)
        began_at = time.monotonic()
        with Probe(*self._address) as probe:
            work()
        took_s = time.monotonic() - began_at
        clock_s, cpu_s = builds.lags_s(self._lags)
        self.rows.append(Row(name, took_s, cpu_s, clock_s, percentile(probe.times_s, 99)))
        self._say(name)

    def _prepare(self) -> None:
        create = messages.CreateTopicsRequest
        with Wire(*self._address, timeout_s=PATIENCE_S) as wire:
            topics = [create.CreatableTopic(TOPIC, PARTITIONS, 1)]
            wire.call(ApiKey.CREATE_TOPICS, 7, create(topics, timeout_ms=30_000))
            find = messages.FindCoordinatorRequest(key_type=1, coordinator_keys=["id"])
            deadline_s = time.monotonic() + PATIENCE_S
            while wire.call(ApiKey.FIND_COORDINATOR, 4, find).coordinators[0].error_code:
                if time.monotonic() > deadline_s:
                    raise BrokerError("no transaction coordinator")
                time.sleep(POLL_S)

    def _reach(self, open_ids: int, ended_ids: int) -> None:
        """Waits until so many ids are in a transaction, and so many have ended one."""
        deadline_s = time.monotonic() + PATIENCE_S
        with Wire(*self._address, timeout_s=PATIENCE_S) as wire:
            while (found := self._count(wire)) != (open_ids, ended_ids):
                if time.monotonic() > deadline_s:
                    raise BrokerError(f"{found} ids are open and ended")
                time.sleep(POLL_S)

    def _count(self, wire: Wire) -> tuple[int, int] | None:
        request = messages.ListTransactionsRequest([], [], -1)
        answer = wire.call(ApiKey.LIST_TRANSACTIONS, 1, request)
        if answer.error_code:
            return None
        states = [each.transaction_state for each in answer.transaction_states]
        return states.count("Ongoing"), states.count("CompleteAbort")


def run(say: Say, ids: int = IDS) -> str:
    """The table."""
    with tempfile.TemporaryDirectory(prefix="kraftpy-bench-") as folder:
        bench = _Bench(Path(folder), ids, say)
        made_bytes, opened_bytes = bench.run()
    lines = [["", "s", "ms of CPU", "ms", "ms"]]
    lines += [
        [
            row.name,
            figures.number(row.seconds),
            figures.number(row.slice_s * 1000),
            figures.number(row.clock_s * 1000),
            figures.number(row.probe_s * 1000),
        ]
        for row in bench.rows
    ]
    table = figures.layout(
        [f"{ids:,} ids", "took", "longest slice", "by the clock", "probe p99"], lines
    )
    return (
        f"{table}\nan id takes {made_bytes:.0f} bytes of memory, "
        f"{opened_bytes:.0f} with an open transaction"
    )
