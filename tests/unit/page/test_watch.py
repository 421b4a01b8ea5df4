"""When the page asks: seldom, one thing at a time, and not at all when nobody looks."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from kraftpy.page import watch as module
from kraftpy.page.model import Disks, Ends
from kraftpy.page.survey import Gone
from kraftpy.page.watch import DISKS, ENDS, GROUPS, NODE, QUORUM, Key, Seen, Watch
from tests.waiting import wait_until

NO_DISKS = Disks({}, {}, {}, frozenset())


class Asked:
    """Stands for `Survey`: counts, and does what it is told to."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.under_way = self.most_under_way = 0
        self.closed = 0
        self.takes_s = 0.0
        self.partitions = 0
        self.fails: Exception | None = None

    def __call__(self, node_id: int, sources: object, security: object) -> Asked:
        return self

    async def close(self) -> None:
        self.closed += 1

    async def _ask(self, what: str) -> str:
        self.counts[what] += 1
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await asyncio.sleep(self.takes_s)
        self.under_way -= 1
        if self.fails is not None:
            raise self.fails
        return f"{what} {self.counts[what]}"

    async def node(self) -> str:
        return await self._ask("node")

    async def quorum(self) -> str:
        return await self._ask("quorum")

    async def transactions(self) -> str:
        return await self._ask("transactions")

    async def groups(self) -> str:
        return await self._ask("groups")

    async def disks(self) -> Disks:
        await self._ask("disks")
        return NO_DISKS

    async def ends(self) -> Ends:
        await self._ask("ends")
        return Ends({}, self.partitions)

    async def topic(self, name: str) -> str:
        return await self._ask(f"topic {name}")

    async def group(self, name: str) -> str:
        if name == "none":
            raise Gone(name)
        return await self._ask(f"group {name}")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    survey = Asked()
    monkeypatch.setattr(module, "Survey", survey)
    monkeypatch.setattr(module, "IDLE_S", 1.0)
    monkeypatch.setitem(module.INTERVALS_S, "groups", 0.2)
    before = threading.active_count()
    yield survey
    wait_until(
        lambda: threading.active_count() == before, "nobody looks, and nothing of it is left"
    )
    assert survey.closed > 0


def see(watch: Watch, key: Key, wait_s: float = 5.0) -> Seen:
    return watch.look(key, wait_s=wait_s)[key]


def test_an_answer_is_used_for_its_time_and_then_asked_for_again(asked: Asked) -> None:
    watch = Watch(1, [])
    seen = watch.look(NODE, QUORUM, DISKS, GROUPS, wait_s=5)
    assert [seen[key].value for key in (NODE, QUORUM, GROUPS)] == ["node 1", "quorum 1", "groups 1"]
    assert seen[DISKS].value is NO_DISKS
    assert see(watch, GROUPS).value == "groups 1"
    wait_until(lambda: see(watch, GROUPS).value == "groups 2", "it was asked again")
    assert see(watch, DISKS).value is NO_DISKS
    assert asked.counts["disks"] == 1


def test_the_ends_of_many_logs_are_asked_for_more_seldom(asked: Asked) -> None:
    asked.partitions = 10_000
    watch = Watch(1, [])
    assert watch.look(ENDS, wait_s=5)[ENDS].value == Ends({}, 10_000)
    watch.look(GROUPS, wait_s=5)
    wait_until(lambda: watch.look(GROUPS, wait_s=5) and asked.counts["groups"] >= 3, "renewed")
    assert module._interval_s(ENDS, watch.look(ENDS, wait_s=5)[ENDS].value) == 10
    assert asked.counts["ends"] == 1


def test_many_who_look_at_once_ask_once(asked: Asked) -> None:
    asked.takes_s = 0.2
    watch = Watch(1, [])
    values: list[object] = []
    threads = [
        threading.Thread(target=lambda: values.append(see(watch, GROUPS).value)) for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == ["groups 1"] * 20
    assert asked.most_under_way == 1


def test_who_looks_does_not_wait_for_what_is_slow(asked: Asked) -> None:
    asked.takes_s = 0.3
    watch = Watch(1, [])
    assert see(watch, GROUPS, 0.05) == Seen()
    assert see(watch, GROUPS).value == "groups 1"
    assert asked.counts["groups"] == 1
    # It took long, so it isn't asked for again as soon as its interval is over.
    time.sleep(0.3)
    assert see(watch, GROUPS).value == "groups 1"


def test_a_failure_keeps_what_was_known_and_says_so(asked: Asked) -> None:
    watch = Watch(1, [])
    assert see(watch, GROUPS).value == "groups 1"
    asked.fails = ConnectionError("no broker answers")
    wait_until(
        lambda: see(watch, GROUPS).problem == "no broker answers",
        "its failure is said",
    )
    assert see(watch, GROUPS).value == "groups 1"
    asked.fails = ZeroDivisionError("secret detail")
    wait_until(lambda: "a defect" in see(watch, GROUPS).problem, "a defect is said")
    asked.fails = None
    wait_until(lambda: see(watch, GROUPS).problem == "", "it works again")
    assert see(watch, Key("group", "none")).gone


def test_few_of_those_with_names_are_kept(asked: Asked) -> None:
    watch = Watch(1, [])
    for number in range(module.NAMED_MAX + 5):
        assert see(watch, Key("topic", str(number))).value is not None
    assert len(watch._slots) == module.NAMED_MAX
    see(watch, Key("topic", "0"))
    assert asked.counts["topic 0"] == 2


def test_after_a_pause_it_begins_anew(asked: Asked) -> None:
    watch = Watch(1, [])
    assert see(watch, GROUPS).value == "groups 1"
    wait_until(lambda: asked.closed == 1, "it is closed")
    assert see(watch, GROUPS).value == "groups 2"
