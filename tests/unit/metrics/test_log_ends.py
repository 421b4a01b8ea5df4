"""Asking leaders for ends takes no longer than it may, whatever they do."""

from __future__ import annotations

import socket
import time

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kraftpy.metrics import log_ends
from kraftpy.metrics.log_ends import LogEnd, LogEnds
from kraftpy.testing import Broker

WANTED = {("t", 0): 5}
TIMEOUT_S = 0.3


def timed_ask(ends: LogEnds, bootstrap: str) -> dict[tuple[str, int], LogEnd]:
    started = time.monotonic()
    found = ends.ask(bootstrap, WANTED, TIMEOUT_S)
    assert time.monotonic() - started < TIMEOUT_S + 2
    return found


def test_a_broker_that_is_silent_holds_nothing_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        bootstrap = f"127.0.0.1:{silent.getsockname()[1]}"
        ends = LogEnds()
        assert timed_ask(ends, bootstrap) == {}
        assert timed_ask(ends, bootstrap) == {}


def test_who_asks_in_a_hurry_leaves_the_next_one_its_time() -> None:
    with Broker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(10)
        ends = LogEnds()
        assert ends.ask(broker.bootstrap, WANTED, 0.0001) == {}
        assert ends.ask(broker.bootstrap, WANTED, 10)["t", 0].offset == 0


def test_nobody_there_is_no_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bootstrap = f"127.0.0.1:{taken.getsockname()[1]}"
    assert timed_ask(LogEnds(), bootstrap) == {}


def test_what_was_told_last_is_kept_for_a_while_and_then_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        bootstrap = f"127.0.0.1:{silent.getsockname()[1]}"
        ends = LogEnds()
        told = LogEnd(9, time.monotonic() - 5)
        ends._known = {("t", 0): told, ("gone", 0): told}
        assert timed_ask(ends, bootstrap) == {("t", 0): told}
        assert ends._known.keys() == {("t", 0)}
        monkeypatch.setattr(log_ends, "KEPT_S", 4.0)
        assert timed_ask(ends, bootstrap) == {}
