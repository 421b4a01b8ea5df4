"""Each kind of fault that there is: it does what it says, and is over when it is said to be."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kraftpy.core.coordination import partition_for
from kraftpy.testing.consistency.clients import adapter
from kraftpy.testing.consistency.faults import FAULTS, Ground, lacking
from kraftpy.testing.consistency.faults.ground import OFFSETS_TOPIC, Part

from .effects import happen
from .stage import TOPIC, Stage, stage

# Mounts take a process of its own.
ALONE = {name for name, kind in FAULTS.items() if kind.need and kind.need.option == "small_disks"}

# test_client_faults.py has these.
CLIENTS = {name for name, kind in FAULTS.items() if kind.part == Part.CLIENTS}


@pytest.fixture(scope="module")
def missing() -> dict[str, str]:
    """What this machine lacks, by the kind that needs it."""
    return lacking(FAULTS)


@pytest.fixture(scope="module")
def shared(missing: dict[str, str]) -> Iterator[Stage]:
    """For all that can happen on one cluster after another."""
    with stage([name for name in FAULTS if name not in missing and name not in ALONE]) as made:
        yield made


@pytest.mark.parametrize("name", [name for name in FAULTS if name not in ALONE | CLIENTS])
def test_a_fault_shows_and_heals(name: str, missing: dict[str, str], shared: Stage) -> None:
    if name in missing:
        pytest.skip(missing[name])
    happen(shared, name)


def test_the_coordinator_is_the_one_whose_groups_are_in_use(shared: Stage) -> None:
    cluster = shared.cluster
    for group in ("first", "second", "third"):
        registers = adapter("kraftpy").registers(cluster.bootstrap, group)
        registers.commit((TOPIC, 0), 1)
        registers.close()
        index = partition_for(group, len(cluster.partitions_of(OFFSETS_TOPIC)))
        for name in ("kill-coordinator", "pause-coordinator"):
            act = FAULTS[name].plan(Ground(cluster, {TOPIC: 3}, random.Random(1)))
            assert act.targets == [cluster.leader_of(OFFSETS_TOPIC, index)]


@pytest.mark.parametrize("name", sorted(ALONE))
def test_a_fault_on_a_cluster_of_its_own(name: str, missing: dict[str, str]) -> None:
    if name in missing:
        pytest.skip(missing[name])
    command = [sys.executable, "-m", "tests.consistency.effects", name]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
