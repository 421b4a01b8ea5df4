"""Faults of clients: who is killed is gone, who is frozen stands still and then goes on."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from kraftpy.testing.consistency import HistoryReader, check
from kraftpy.testing.consistency.faults import FAULTS, Act, Ground, LeftOut
from kraftpy.testing.consistency.history import Phase
from kraftpy.testing.consistency.operations import Operation, pair
from kraftpy.testing.consistency.plan import Plan
from kraftpy.testing.consistency.runner import run
from tests.waiting import wait_until

CLIENTS = ("confluent-kafka", "aiokafka", "kraftpy")


class Bystander:
    name = "a bystander"
    away = False
    role = ""
    identity: int | None = None

    def __init__(self) -> None:
        self._popen = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])

    @property
    def state(self) -> str:
        """As /proc has it: S for one that sleeps, T for one that is stopped; - for none."""
        if self._popen.poll() is not None:
            return "-"
        return Path(f"/proc/{self._popen.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def crash(self) -> None:
        self._popen.kill()

    def freeze(self) -> None:
        self._popen.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._popen.send_signal(signal.SIGCONT)

    def leave(self) -> None:
        self._popen.terminate()
        self.away = True

    def come_back(self) -> None:
        self.away = False

    def take_identity(self, identity: int) -> None:
        raise AssertionError("it has none")

    def close(self) -> None:
        self._popen.kill()
        self._popen.wait()


@pytest.fixture
def bystander() -> Iterator[Bystander]:
    made = Bystander()
    yield made
    made.close()


def plan_of(name: str, *clients: Bystander) -> Act:
    return FAULTS[name].plan(Ground(cast(Any, None), {}, random.Random(1), clients=clients))


def test_a_killed_client_is_gone(bystander: Bystander) -> None:
    act = plan_of("kill-client", bystander)
    assert act.begin() == bystander.name
    wait_until(lambda: bystander.state == "-", "it is dead", 10)
    act.end()


def test_a_frozen_client_stands_still_and_goes_on(bystander: Bystander) -> None:
    act = plan_of("freeze-client", bystander)
    assert act.begin() == bystander.name
    wait_until(lambda: bystander.state == "T", "it stands still", 10)
    act.end()
    wait_until(lambda: bystander.state in "RS", "it goes on", 10)


def test_a_client_that_left_is_away_until_it_may_come_back(bystander: Bystander) -> None:
    act = plan_of("leave-client", bystander)
    assert act.begin() == bystander.name
    wait_until(lambda: bystander.state == "-", "it is gone", 10)
    assert bystander.away
    act.end()
    assert not bystander.away


@pytest.mark.parametrize("name", ["kill-client", "freeze-client", "leave-client"])
def test_without_clients_none_can_be_killed_or_frozen(name: str) -> None:
    act = plan_of(name)
    assert isinstance(act.begin(), LeftOut)
    act.end()


class Producer:
    """A client that writes in transactions, and notes as whom."""

    def __init__(self, role: str, identity: int | None) -> None:
        self.name = f"{role} {identity}"
        self.role = role
        self.identity = identity
        self.told: list[int] = []

    def take_identity(self, identity: int) -> None:
        self.told.append(identity)


def hijack(*clients: Any) -> Act:
    return FAULTS["hijack"].plan(Ground(cast(Any, None), {}, random.Random(1), clients=clients))


def test_a_hijacked_id_has_two_producers_until_it_is_given_back() -> None:
    clients = [
        Producer("transact", 1),
        Producer("transact", 2),
        Producer("look", None),
        Producer("transfer", 4),
    ]
    act = hijack(*clients)
    assert "has the id of transact" in str(act.begin())
    (thief,) = [each for each in clients if each.told]
    assert thief.told == [3 - (thief.identity or 0)]
    act.end()
    assert thief.told[1:] == [thief.identity]


@pytest.mark.parametrize("roles", [(), ("transact",), ("transact", "transfer")])
def test_a_hijack_takes_two_of_a_kind(roles: tuple[str, ...]) -> None:
    act = hijack(*(Producer(role, number) for number, role in enumerate(roles)))
    assert isinstance(act.begin(), LeftOut)
    act.end()


def test_nothing_is_late_without_transactions() -> None:
    act = FAULTS["late-frames"].plan(Ground(cast(Any, None), {}, random.Random(1)))
    assert isinstance(act.begin(), LeftOut)
    act.end()


def test_groups_survive_their_members(tmp_path: Path) -> None:
    """First nothing happens to them but that their coordinator moves. Then they leave, also while
    that is away, are killed, and frozen until they are thrown out; and all brokers are killed.
    """
    faults = [
        "move-coordinator",
        "freeze-client",
        "kill-coordinator+leave-client",
        "kill-client",
        "kill-all",
    ]
    plan = Plan("groups", tmp_path, faults, time_limit_s=28, rate=120, seed=2152, clients=CLIENTS)
    started = time.monotonic()
    result = run(plan, say=print)
    assert result.faults.keys() == {name for each in faults for name in each.split("+")}
    assert (result.dead, result.killed, result.unhealthy) == (0, 0, "")
    assert result.crashed >= 1
    reader = HistoryReader(plan.history)
    frozen = [e for e in pair(reader) if isinstance(e, Operation) and e.f == "frozen"]
    assert all(6000 < each.value["ms"] < 1000 * (time.monotonic() - started) for each in frozen)
    assert frozen
    outcome = check(reader)
    assert outcome.valid, [each for each in outcome.verdicts if not each.valid]
    said = {each.checker: next(iter(each.counts.values())) for each in outcome.verdicts}
    assert said["needless-rebalance"] == 2  # two groups
    assert said["settling"] == 4 * 2
    assert said["leaving"] == 2
    looks = [e for e in pair(reader) if isinstance(e, Operation) and e.f == "fetch"]
    phases = {e.name: e.time_ns for e in reader if isinstance(e, Phase)}
    assert sum(each.ended_ns < phases["heal"] for each in looks if each.outcome == "ok") > 20
    assert said["stale-commit"] > 50  # there was load, and it was processed
    assert said["all-processed"] > 500
