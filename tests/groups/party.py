"""One group with real members: processes that are started, told to leave, and killed."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kraftpy.testing import Cluster
from tests.groups import jvm, members
from tests.groups.history import Reader, Story
from tests.groups.wire import UNANSWERED, GroupView, describe
from tests.processes import tail

ROOT = Path(__file__).resolve().parents[2]
LEAVE_TIMEOUT_S = 60.0
JVMS_MAX = 10


class Kind(NamedTuple):
    """Which client a member has, and consumer (KIP-848) or the assignor of the classic protocol."""

    client: str
    protocol: str


# What a group's members are, in turn.
KINDS: dict[str, tuple[Kind, ...]] = {
    "confluent": (Kind("confluent-kafka", "range"),),
    "confluent-cooperative": (Kind("confluent-kafka", "cooperative-sticky"),),
    "confluent-consumer": (Kind("confluent-kafka", "consumer"),),
    "kafka-python": (Kind("kafka-python", "range"),),
    "aiokafka": (Kind("aiokafka", "range"),),
    "kraftpy": (Kind("kraftpy", "range"),),
    "kraftpy-cooperative": (Kind("kraftpy", "cooperative-sticky"),),
    "java": (Kind("java", "range"),),
    "java-cooperative": (Kind("java", "cooperative-sticky"),),
    "java-consumer": (Kind("java", "consumer"),),
    "mixed-consumer": (Kind("java", "consumer"), Kind("confluent-kafka", "consumer")),
    "mixed": (
        Kind("confluent-kafka", "range"),
        Kind("kafka-python", "range"),
        Kind("aiokafka", "range"),
        Kind("kraftpy", "range"),
    ),
    # Converted from one protocol to the other and back while it is in use.
    "mixed-protocols": (
        Kind("confluent-kafka", "range"),
        Kind("confluent-kafka", "consumer"),
        Kind("kafka-python", "range"),
        Kind("aiokafka", "range"),
        Kind("confluent-kafka", "consumer"),
        Kind("kraftpy", "range"),
    ),
}


@dataclass(frozen=True, slots=True)
class Times:
    poll_ms: int
    session_timeout_ms: int
    heartbeat_interval_ms: int


@dataclass(slots=True)
class Host:
    """A process with one member, or with several in a JVM."""

    process: subprocess.Popen[bytes]
    log: Path
    readers: dict[str, Reader]

    @property
    def names(self) -> str:
        return ", ".join(self.readers)

    def thaw(self) -> None:
        """SIGCONT: it goes on where it stood still."""
        self.process.send_signal(signal.SIGCONT)


class Party:
    """The members of one group, `size` of them when nobody is missing; `name` is the group's."""

    def __init__(
        self, kind: str, size: int, times: Times, topic: str, partitions: int, folder: Path
    ) -> None:
        self.name = kind
        self.size = size
        self.times = times
        self.classic = all(each.protocol != "consumer" for each in KINDS[kind])
        self.folder = folder / kind
        self.folder.mkdir(parents=True)
        self.story = Story(self.folder / "driver.jsonl", kind)
        self._topic = topic
        self._partitions = partitions
        self._hosts: list[Host] = []
        self._leavers: list[Host] = []
        self._owned: dict[str, set[int]] = {}
        self._epochs: dict[str, int] = {}
        self._started = 0

    @property
    def members(self) -> int:
        return sum(len(host.readers) for host in self._hosts)

    # -- life

    def fill(self, bootstrap: str) -> None:
        """Start members until none is missing."""
        while self.members < self.size:
            self.start_one(bootstrap)

    def start_one(self, bootstrap: str) -> None:
        """Start one process more."""
        kind = KINDS[self.name][self._started % len(KINDS[self.name])]
        self._started += 1
        names = [f"{self.name}.{self._started}"]
        options = {
            "protocol": kind.protocol,
            "bootstrap": bootstrap,
            "group": self.name,
            "topic": self._topic,
            "folder": self.folder,
            "poll_ms": self.times.poll_ms,
            "session_timeout_ms": self.times.session_timeout_ms,
            "heartbeat_interval_ms": self.times.heartbeat_interval_ms,
        }
        if kind.client == "java":
            count = min(self.size - self.members, max(1, self.size // JVMS_MAX))
            names = [f"{names[0]}.{i}" for i in range(count)]
            command = jvm.command(names, **options)
        else:
            command = members.command(names[0], client=kind.client, **options)
        log = self.folder / f"{self.name}.{self._started}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=output, stderr=output
            )
        readers = {name: Reader(self.folder / f"{name}.jsonl") for name in names}
        self._hosts.append(Host(process, log, readers))

    def kill_one(self, rng: random.Random) -> str:
        """SIGKILL for a process, whatever it is doing; returns the names of its members."""
        host = self._hosts.pop(rng.randrange(len(self._hosts)))
        host.process.kill()
        self._bury(host)
        return host.names

    def _bury(self, host: Host) -> None:
        host.process.wait()
        assert host.process.stdin is not None
        host.process.stdin.close()
        for name in host.readers:
            self._forget(name)
            self.story.note("killed", member=name)

    def freeze_one(self, rng: random.Random) -> Host:
        """SIGSTOP for a process."""
        host = rng.choice(self._hosts)
        host.process.send_signal(signal.SIGSTOP)
        return host

    def let_one_leave(self, rng: random.Random) -> str:
        """Tell a process to close its consumers; returns their names."""
        host = self._hosts.pop(rng.randrange(len(self._hosts)))
        self._say_leave(host)
        return host.names

    def _say_leave(self, host: Host) -> None:
        assert host.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended by itself: `watch` tells
            host.process.stdin.write(b"leave\n")
            host.process.stdin.flush()
        for name in host.readers:
            self._forget(name)
        self._leavers.append(host)

    def _forget(self, name: str) -> None:
        self._owned.pop(name, None)
        self._epochs.pop(name, None)

    def watch(self) -> None:
        """Note the processes that ended without being told to, and forget those that left."""
        for host in [*self._hosts, *self._leavers]:
            code = host.process.poll()
            if code is None:
                continue
            if host in self._leavers and code == 0:
                self._leavers.remove(host)
                continue
            for name in host.readers:
                self.story.note("ended", member=name, detail=f"exit {code}: {tail(host.log, 5)}")
            (self._leavers if host in self._leavers else self._hosts).remove(host)

    def leave(self) -> None:
        """Have all members leave, and wait until they have."""
        while self._hosts:
            self._say_leave(self._hosts.pop())
        deadline = time.monotonic() + LEAVE_TIMEOUT_S
        while self._leavers and time.monotonic() < deadline:
            self.watch()
            time.sleep(0.02)
        for host in self._leavers:
            for name in host.readers:
                detail = f"it did not leave within {LEAVE_TIMEOUT_S:.0f} s"
                self.story.note("ended", member=name, detail=detail)

    def close(self) -> None:
        """End all processes."""
        for host in [*self._hosts, *self._leavers]:
            host.process.kill()
            host.process.wait()
            assert host.process.stdin is not None
            host.process.stdin.close()
        self._hosts, self._leavers = [], []
        self.story.close()

    # -- looking at it

    def view(self, cluster: Cluster) -> GroupView | None:
        """The group as its coordinator describes it; None without an answer."""
        try:
            return describe(cluster, self.name)
        except UNANSWERED:
            return None

    def is_settled(self, view: GroupView | None) -> bool:
        """The coordinator and the members say that all of them share all partitions.

        In the classic protocol all members, also those that got nothing, have to have heard of the
        same generation.
        """
        self._follow()
        if self.classic and (len(self._epochs) < self.members or len({*self._epochs.values()}) > 1):
            return False
        if view is None or view.state != "Stable" or len(view.owners) != self.members:
            return False
        everything = list(range(self._partitions))
        known = sorted(index for some in self._owned.values() for index in some)
        return known == everything == sorted(i for some in view.owners.values() for i in some)

    def _follow(self) -> None:
        """Read what members noted since the last time."""
        for host in self._hosts:
            for name, reader in host.readers.items():
                owned = self._owned.setdefault(name, set())
                for event in reader.read():
                    if event["event"] == "assigned":
                        owned.update(event["partitions"])
                        self._epochs[name] = event["epoch"]
                    elif event["event"] in ("revoked", "lost"):
                        owned.difference_update(event["partitions"])

    def describe_state(self, view: GroupView | None) -> str:
        """In words, why it is not settled."""
        told = "no answer" if view is None else f"{view.state}, {_counts(view.owners.values())}"
        said = f"{_counts(self._owned.values())} in epochs {sorted({*self._epochs.values()})}"
        return f"{self.members} members; they say {said}; the coordinator says {told}"


def _counts(owned: Iterable[Collection[int]]) -> str:
    sizes = [len(some) for some in owned]
    return f"{len(sizes)} with {sum(sizes)} partitions"
