"""What a run does to groups besides loading them: waits until they rest, and notes what they are.

Rules:

* A group is at rest when its coordinator has it stable, with as many members as there are workers,
  and says of who owns what the same as the members noted in the history; in the classic protocol
  all of them have heard of the same generation as well.
* What a coordinator says is asked for from outside, with a client that the members don't share.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kraftpy.client.cluster import Cluster as Connections
from kraftpy.client.group_admin import GroupAdmin
from kraftpy.client.group_info import CLASSIC, GroupInfo
from kraftpy.client.spans import Spans, join, size, subtract
from kraftpy.protocol.errors import KafkaError
from kraftpy.testing.consistency import clients, secured
from kraftpy.testing.consistency.checkers.pieces import SLOTS, slices_of
from kraftpy.testing.consistency.clients import Place, key_of
from kraftpy.testing.consistency.history import HistoryWriter
from kraftpy.testing.consistency.worker import SESSIONS_MAX

SETTLE_TIMEOUT_S = 120.0
QUIET_S = clients.SESSION_TIMEOUT_MS / 1000 + 2.0
"""Whom a coordinator takes for gone that has just begun, it has thrown out by then."""
_DRAIN_TIMEOUT_S = 60.0
_LEFT_TIMEOUT_S = 2 * clients.SESSION_TIMEOUT_MS / 1000
_ASK_TIMEOUT_MS = 2_000
_STABLE = "Stable"


class Claims:
    """Who has what, and as of which epoch, as members have noted it so far; by number of worker."""

    def __init__(self, path: Path) -> None:
        self.owned: dict[str, dict[int, dict[str, Spans]]] = {}
        self.epochs: dict[str, dict[int, int]] = {}
        self._sessions: dict[int, int] = {}
        self._file = path.open("rb")
        self._unread = b""

    def close(self) -> None:
        self._file.close()

    def read(self) -> None:
        """Takes in what came since the last time."""
        *lines, self._unread = (self._unread + self._file.read()).split(b"\n")
        for line in lines:
            self._take(line)
        if self._take(self._unread):  # the newest line has no end yet
            self._unread = b""

    def _take(self, line: bytes) -> bool:
        try:
            entry = json.loads(line)
        except ValueError:
            return False  # not complete, or never to be
        f, value = entry.get("f"), entry.get("value")
        if f in ("assigned", "revoked", "lost", "gone"):
            worker, group = entry["process"] // SESSIONS_MAX, value["group"]
            owned = self.owned.setdefault(group, {})
            epochs = self.epochs.setdefault(group, {})
            if self._sessions.get(worker) != entry["process"]:
                self._sessions[worker] = entry["process"]
                owned[worker] = {}
                epochs.pop(worker, None)
            has = owned.setdefault(worker, {})
            for key, slices in slices_of(value).items():
                spans = join((first, last + 1) for first, last in slices)
                before = has.pop(key, [])
                after = join([*before, *spans]) if f == "assigned" else subtract(before, spans)
                if after:
                    has[key] = after
            if f == "assigned":
                epochs[worker] = value["epoch"]
            if f == "gone":
                del owned[worker]
                epochs.pop(worker, None)
        return True


def _is_whole(owned: Iterable[Mapping[str, Spans]], key: str) -> bool:
    """Whether the parts that members have of a partition are all of it, each of them once."""
    parts = [has.get(key, []) for has in owned]
    return (
        join(span for spans in parts for span in spans) == [(0, SLOTS)]
        and sum(map(size, parts)) == SLOTS
    )


class Rest:
    """`members` tells how many workers are in each group now; `watch` looks after them a while.

    `places` are all partitions that the groups share.
    """

    def __init__(
        self,
        bootstrap: str,
        places: Sequence[Place],
        path: Path,
        history: HistoryWriter,
        process: int,
        members: Callable[[], Mapping[str, int]],
        watch: Callable[[], None],
    ) -> None:
        self._bootstrap = bootstrap
        self._places = places
        self._keys = sorted(map(key_of, places))
        self._history = history
        self._process = process
        self._members = members
        self._watch = watch
        self._claims = Claims(path)

    def close(self) -> None:
        self._claims.close()

    def settle(self) -> bool:
        """Waits until all groups are at rest, and notes what they are like; whether they are."""
        began = time.monotonic()
        restless = sorted(self._members())
        while restless:
            self._watch()
            found = self._describe(restless)
            self._claims.read()
            problems = {group: self._problem(group, found.get(group)) for group in restless}
            for group, problem in problems.items():
                if not problem:
                    self._note_settled(found[group], time.monotonic() - began)
                    restless.remove(group)
            if time.monotonic() - began > SETTLE_TIMEOUT_S:
                for group in restless:
                    self._note("unsettled", group, detail=problems[group])
                return False
        return True

    def _note(self, f: str, group: str, **fields: Any) -> None:
        self._history.note(self._process, f, {"group": group, **fields})

    def _note_settled(self, group: GroupInfo, after_s: float) -> None:
        members = {each.id: sorted(map(key_of, each.partitions)) for each in group.members}
        self._note("settled", group.id, keys=self._keys, members=members, ms=int(1000 * after_s))

    def _problem(self, group: str, found: GroupInfo | None) -> str:
        """Why it is not at rest, empty if it is."""
        wanted = self._members()[group]
        owned, epochs = self._claims.owned.get(group, {}), self._claims.epochs.get(group, {})
        if found is None:
            return "its coordinator does not answer"
        if found.state != _STABLE or len(found.members) != wanted:
            return f"it is {found.state} with {len(found.members)} members of {wanted}"
        given = sorted(key_of(place) for each in found.members for place in each.partitions)
        noted = sorted(key for has in owned.values() for key in has)
        if given != noted or not all(_is_whole(owned.values(), key) for key in self._keys):
            return f"of {len(self._keys)} partitions {len(given)} are given, {len(noted)} noted"
        if found.type == CLASSIC and (len(epochs) != wanted or len({*epochs.values()}) > 1):
            return f"its members are in generations {sorted(epochs.values())}"
        return ""

    def begin_calm(self) -> None:
        for group in self._members():
            self._note("calm", group)

    def end_calm(self) -> None:
        for group in self._members():
            self._note("uproar", group)

    def drain(self) -> None:
        """Waits until the groups have committed the ends of all logs, and notes these."""
        ends = self._ends()
        wanted = {place: end for place, end in ends.items() if end}
        deadline = time.monotonic() + _DRAIN_TIMEOUT_S
        behind = sorted(self._members())
        while behind and time.monotonic() < deadline:
            self._watch()
            committed = self._ask_each(behind, GroupAdmin.committed)
            behind = [
                group
                for group in behind
                if group not in committed
                or any(
                    place not in committed[group] or committed[group][place].offset < end
                    for place, end in wanted.items()
                )
            ]
        for group in self._members():
            self._note("ends", group, ends={key_of(place): end for place, end in ends.items()})

    def _ends(self) -> dict[Place, int]:
        reader = clients.adapter("kraftpy").reader(self._bootstrap, "")
        try:
            deadline = time.monotonic() + _DRAIN_TIMEOUT_S
            bounds = clients.bounds_by(reader, self._places, deadline)
            return {place: end for place, (_, end) in bounds.items()}
        finally:
            reader.close()

    def note_left(self, groups: Sequence[str]) -> None:
        """Waits until no group has a member, and notes whom they still have."""
        deadline = time.monotonic() + _LEFT_TIMEOUT_S
        while True:
            found = self._describe(groups)
            empty = all(group in found and not found[group].members for group in groups)
            if empty or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        for group, info in found.items():
            self._note("left", group, members=[each.id for each in info.members])

    def _describe(self, groups: Sequence[str]) -> dict[str, GroupInfo]:
        found: dict[str, GroupInfo] = self._ask_each(groups, GroupAdmin.describe_group)
        return found

    def _ask_each(self, groups: Sequence[str], ask: Callable[[GroupAdmin, str], Any]) -> Any:
        """The answers by group; none of those that could not be asked."""
        return asyncio.run(self._ask(groups, ask))

    async def _ask(
        self, groups: Sequence[str], ask: Callable[[GroupAdmin, str], Any]
    ) -> dict[str, Any]:
        answers = {}
        async with Connections(
            self._bootstrap, request_timeout_ms=_ASK_TIMEOUT_MS, security=secured.own()
        ) as connections:
            admin = GroupAdmin(connections, timeout_ms=_ASK_TIMEOUT_MS)
            for group in groups:
                with contextlib.suppress(ConnectionError, KafkaError):
                    answers[group] = await ask(admin, group)
        return answers
