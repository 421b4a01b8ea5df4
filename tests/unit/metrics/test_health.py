"""What /healthz and /readyz say of a node, in each state that its processes can be in."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import msgpack
import pytest

from kraftpy.metrics.channel import Frame, Source, SourceUnavailable, channel
from kraftpy.metrics.exporter import Exporter
from kraftpy.metrics.frames import HEALTH

STARTING = {"started": False, "serves": False, "in_touch": True}
FENCED = {"started": True, "serves": False, "in_touch": True}  # and one that is about to stop
CUT_OFF = {"started": True, "serves": True, "in_touch": False}
SERVES = {"started": True, "serves": True, "in_touch": True}
LEADS = {"has_leader": True}
LEADERLESS = {"has_leader": False}
Health = dict[str, bool]


class Process:
    """Stands for a source; `says` is None while it doesn't answer."""

    pid = 1

    def __init__(self, name: str, says: Health | None, *, started: bool = True) -> None:
        self.name = name
        self.says = says
        self.started = started
        self.ended = False

    def ask(self, what: str, timeout_s: float = 0.0) -> list[Frame]:
        assert what == HEALTH
        if self.says is None:
            raise SourceUnavailable("it doesn't answer")
        return [[HEALTH, self.says]]


def exporter(*processes: Process) -> Exporter:
    return Exporter(1, processes, [], lambda: None)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("broker", "controller", "is_healthy", "is_ready"),
    [
        (SERVES, LEADS, True, True),
        (STARTING, LEADS, True, False),
        (STARTING, LEADERLESS, True, False),
        (FENCED, LEADS, True, False),
        (CUT_OFF, LEADERLESS, True, False),
        (SERVES, LEADERLESS, True, False),
        (None, LEADS, False, False),
        (SERVES, None, False, False),
    ],
)
def test_each_state(
    broker: Health | None, controller: Health | None, is_healthy: bool, is_ready: bool
) -> None:
    node = exporter(Process("broker", broker), Process("controller", controller))
    assert all(node.healthz().values()) is is_healthy
    assert all(node.readyz().values()) is is_ready


def test_a_scrape_that_had_to_wait_for_another_one_asks_in_less_time() -> None:
    given_s: list[float] = []

    class Hung(Process):
        def ask(self, what: str, timeout_s: float = 0.0) -> list[Frame]:
            given_s.append(timeout_s)
            raise SourceUnavailable("it doesn't answer")

    node = exporter(Hung("broker", None))
    with node._lock:
        waiting = threading.Thread(
            target=node.metrics, args=("",), kwargs={"compress": False, "timeout_s": 2.0}
        )
        waiting.start()
        waiting.join(0.5)
    waiting.join()
    assert len(given_s) == 1
    assert given_s[0] < 0.7  # 0.8 without waiting, 0.6 after half a second


def test_a_node_of_one_process_is_asked_for_that_alone() -> None:
    assert exporter(Process("controller", LEADS)).readyz() == {
        "controller answers": True,
        "controller has_leader": True,
    }


def test_a_broker_that_recovers_its_logs_is_well_and_one_that_hangs_later_is_not() -> None:
    broker = Process("broker", None, started=False)
    node = exporter(broker)
    assert node.healthz() == {"broker answers or starts": True}
    assert not all(node.readyz().values())
    broker.says = STARTING
    assert node.healthz() == {"broker answers": True}
    broker.says = None
    assert node.healthz() == {"broker answers or starts": True}
    broker.says, broker.started = SERVES, True
    assert all(node.healthz().values())
    broker.says = None
    assert node.healthz() == {"broker answers": False}


def test_who_is_answering_a_scrape_answers() -> None:
    ours, theirs = channel()
    source = Source("broker", 1, ours)
    node = Exporter(1, [source], [], lambda: None)  # type: ignore[arg-type, return-value]
    asked, done = threading.Event(), threading.Event()

    def answer() -> None:
        """Its health, then a scrape that takes its time, in frames."""
        number, _ = msgpack.unpackb(theirs.recv(1024))
        theirs.send(msgpack.packb([number, [HEALTH, SERVES]]))
        theirs.send(msgpack.packb([number, None]))
        number, _ = msgpack.unpackb(theirs.recv(1024))
        while not done.wait(0.01):
            theirs.send(msgpack.packb([number, ["samples", []]]))
            asked.set()
        theirs.send(msgpack.packb([number, None]))

    with ours, theirs, ThreadPoolExecutor() as threads:
        answering = threads.submit(answer)
        assert all(node.readyz().values())
        scrape = threads.submit(source.ask, "metrics", 60.0)
        assert asked.wait(20)
        try:
            assert all(node.readyz().values())
            assert node.healthz() == {"broker answers": True}
        finally:
            done.set()
        assert scrape.result(20)
        answering.result(20)


def test_a_process_that_ended_while_it_started_is_not_well() -> None:
    broker = Process("broker", None, started=False)
    broker.ended = True
    assert exporter(broker).healthz() == {"broker answers or starts": False}
