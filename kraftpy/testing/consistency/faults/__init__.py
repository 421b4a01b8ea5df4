"""What is done to a cluster while a workload runs, by name.

Rules:

* A fault is begun, lasts for a while, and is ended. Kinds, victims and times follow from the seed;
  which node "the leader" is shows only when the fault begins.
* Faults are what machines and networks do. Links are cut and slowed by `kraftpy.testing.networks`,
  so between nodes only: clients reach every node.
* Mostly one fault at a time. Now and then two overlap that work on different parts of the cluster,
  and those that the user joins with `+` do: kill+partition.
* What a machine lacks for a fault is found by trying.
* What `storage` faults damage is what one node has lost by a crash, never more: the promise is that
  the others make up for it.
"""

from __future__ import annotations

from kraftpy.testing.consistency.faults.ground import Act, Ground, Kind, LeftOut
from kraftpy.testing.consistency.faults.kinds import FAULTS
from kraftpy.testing.consistency.faults.needs import cluster_options, kinds, lacking
from kraftpy.testing.consistency.faults.schedule import Planned, schedule

__all__ = [
    "FAULTS",
    "Act",
    "Ground",
    "Kind",
    "LeftOut",
    "Planned",
    "cluster_options",
    "kinds",
    "lacking",
    "schedule",
]
