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
from kraftpy.testing.consistency.operations import Operation, pair
from kraftpy.testing.consistency.plan import Plan
from kraftpy.testing.consistency.runner import run
from kraftpy.testing.process import wait_until

CLIENTS = ("confluent-kafka", "aiokafka", "kraftpy")


class Bystander:
    name = "a bystander"

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
    wait_until(lambda: bystander.state == "-", "it lives on", 10)
    act.end()


def test_a_frozen_client_stands_still_and_goes_on(bystander: Bystander) -> None:
    act = plan_of("freeze-client", bystander)
    assert act.begin() == bystander.name
    wait_until(lambda: bystander.state == "T", "it goes on", 10)
    act.end()
    wait_until(lambda: bystander.state in "RS", "it stands still", 10)


@pytest.mark.parametrize("name", ["kill-client", "freeze-client"])
def test_where_no_client_is_none_can_be_hurt(name: str) -> None:
    act = plan_of(name)
    assert isinstance(act.begin(), LeftOut)
    act.end()


def test_groups_survive_their_members(tmp_path: Path) -> None:
    """Killed, also while their coordinator is away, and frozen until they are thrown out."""
    faults = ["freeze-client", "kill-coordinator+kill-client", "kill-client"]
    plan = Plan("groups", tmp_path, faults, time_limit_s=30, rate=120, seed=3, clients=CLIENTS)
    started = time.monotonic()
    result = run(plan, say=print)
    assert result.faults.keys() == {"freeze-client", "kill-coordinator", "kill-client"}
    assert (result.dead, result.killed, result.unhealthy) == (0, 0, "")
    assert result.crashed >= 2
    reader = HistoryReader(plan.history)
    frozen = [e for e in pair(reader) if isinstance(e, Operation) and e.f == "frozen"]
    assert all(6000 < each.value["ms"] < 1000 * (time.monotonic() - started) for each in frozen)
    assert frozen
    outcome = check(reader)
    assert outcome.valid, [each for each in outcome.verdicts if not each.valid]
