"""What a workload is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kraftpy.testing.consistency.worker import Worker

Role = Callable[["Worker"], None]
ALL_CLIENTS = ("confluent-kafka", "kafka-python", "kraftpy")


@dataclass(frozen=True, slots=True)
class Part:
    """One worker's part: a role, and the clients that can play it."""

    role: str
    clients: Sequence[str] = ALL_CLIENTS


@dataclass(frozen=True, slots=True)
class Play:
    """One workload.

    * `about`: what it does and what that shows, in a sentence
    * `roles`: what workers do, by name
    * `cast`: the parts; workers take them in turn, so the first ones come first; those that no
      client of the run can play are left out
    * `final`: the part of those that read everything in the end, one worker for each client
    * `options`: of the run, made from a name that is unique and its time limit in seconds
    * `topics`: what has to exist, name -> number of partitions, from the options
    * `configs`: of these topics; `sharing_configs`: also, where members can share partitions
    * `group_configs`: of its share groups, by their ids, from the options
    * `members`: roles whose workers are members of groups, each with its group's name in the
      options; such a run has its groups come to rest before its final reads, and workers beyond
      the cast are members, too
    * `first_out`: the roles that stop before all others
    * `producers`: roles whose workers write in transactions, each under an id of its own
    * `inspected`: whether the nodes are stopped in the end, and their disks looked at
    """

    about: str
    roles: Mapping[str, Role]
    cast: Sequence[Part]
    final: Part
    options: Callable[[str, float], dict[str, Any]]
    topics: Callable[[Mapping[str, Any]], Mapping[str, int]]
    configs: Mapping[str, str] = field(default_factory=dict)
    sharing_configs: Mapping[str, str] = field(default_factory=dict)
    group_configs: Callable[[Mapping[str, Any]], Mapping[str, Mapping[str, str]]] = lambda _: {}
    members: Mapping[str, str] = field(default_factory=dict)
    first_out: Sequence[str] = ()
    producers: Sequence[str] = ()
    inspected: bool = False
