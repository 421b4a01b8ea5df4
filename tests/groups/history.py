"""The history of a group: what its members did and what was done to them, as JSON lines.

Each line is one write(2), so that what was noted survives kill -9. Every event has `at` (seconds of
CLOCK_MONOTONIC: one clock for all processes of a machine), `group` and `event`. Those of a member
have `member`, a name that no other life of a process has, and are:

* `started`: `client`, `pid`
* `assigned`: `partitions` that it has from now on, `owned` (all that it has now), `epoch` (the
  generation or, with KIP-848, the member epoch; -1 where the client doesn't tell) and `member_id`
* `revoked`: `partitions` that it gives up; noted before the coordinator can hear of it
* `lost`: `partitions` that it had, as it learned too late
* `processed`: offsets `first` to `end` (exclusive) of `partition`; noted before they are committed
* `committing`: `commit` (its number), `offsets` by partition; then `committed` or `refused`
  (`error`), or neither
* `failed`: a poll raised `error`, after which the member goes on
* `left`: it closed its consumer

Those of the driver are:

* `killed`: `member` got SIGKILL, and is gone
* `read`: the committed `offsets` by partition that were answered to a question asked at `began`
* `fault`: `what` was done to the cluster
* `moving` and `moved`: in between, nothing happened to the group but that its coordinator moved
* `settled`: `owners`, partitions by member id as the coordinator tells them, `after` seconds; or
  `unsettled`: `detail`, what it was like when time was up
* `ended`: the process of `member` was gone though nobody had ended it; `detail`
* `written`: `ends` by partition: the offsets that the topic's partitions end with
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Event = dict[str, Any]


class Story:
    """Writes one history, from any thread."""

    def __init__(self, path: Path, group: str) -> None:
        self._group = group
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        self._lock = threading.Lock()

    def note(self, event: str, **fields: object) -> None:
        with self._lock:
            line = {"at": time.monotonic(), "group": self._group, "event": event, **fields}
            os.write(self._file, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


class MemberStory:
    """Writes the history of one member, whose client is in Python.

    A client may hand out records of partitions that it gave up in the same call: these are not
    processed, since whoever has them now begins with what is committed.
    """

    def __init__(self, path: Path, group: str, member: str, client: str) -> None:
        self.owned: set[int] = set()
        self._story = Story(path, group)
        self._member = member
        self._commits = 0
        self.note("started", client=client, pid=os.getpid())

    def note(self, event: str, **fields: object) -> None:
        self._story.note(event, member=self._member, **fields)

    def assigned(self, partitions: Iterable[int], epoch: int, member_id: str) -> None:
        added = sorted(partitions)
        self.owned.update(added)
        owned = sorted(self.owned)
        self.note("assigned", partitions=added, owned=owned, epoch=epoch, member_id=member_id)

    def revoked(self, partitions: Iterable[int]) -> None:
        self._give_up("revoked", partitions)

    def lost(self, partitions: Iterable[int]) -> None:
        self._give_up("lost", partitions)

    def _give_up(self, event: str, partitions: Iterable[int]) -> None:
        gone = sorted(partitions)
        self.owned.difference_update(gone)
        self.note(event, partitions=gone)

    def process(self, records: Iterable[tuple[int, int]]) -> dict[int, int]:
        """Note (partition, offset) as processed; what is to be committed, by partition."""
        runs: dict[int, list[int]] = {}
        for partition, offset in records:
            if partition not in self.owned:
                continue
            run = runs.get(partition)
            if run is not None and run[1] == offset:
                run[1] = offset + 1
                continue
            if run is not None:
                self.note("processed", partition=partition, first=run[0], end=run[1])
            runs[partition] = [offset, offset + 1]
        for partition, (first, end) in runs.items():
            self.note("processed", partition=partition, first=first, end=end)
        return {partition: end for partition, (_, end) in runs.items()}

    @contextmanager
    def committing(self, offsets: Mapping[int, int], *errors: type[Exception]) -> Any:
        """Around a commit: one of these errors is how the client says that it did not succeed."""
        self._commits += 1
        number = self._commits
        self.note("committing", commit=number, offsets=offsets)
        try:
            yield
        except errors as error:
            self.note("refused", commit=number, error=repr(error))
        else:
            self.note("committed", commit=number)


class Reader:
    """Reads a history that is being written: `events` has what is there as of the last `read`."""

    def __init__(self, path: Path) -> None:
        self.events: list[Event] = []
        self._path = path
        self._position = 0

    def read(self) -> list[Event]:
        """What came since the last time."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        self._position += len(data)
        new = [_decode(line) for line in data.splitlines()]
        self.events += new
        return new


def _decode(line: bytes) -> Event:
    """JSON has no keys but strings."""
    event: Event = json.loads(line)
    for field in ("offsets", "ends"):
        if field in event:
            event[field] = {int(partition): value for partition, value in event[field].items()}
    return event


def read_folder(folder: Path) -> list[Event]:
    """All events of the histories in a folder, in the order in which they happened."""
    events: list[Event] = []
    for path in sorted(folder.glob("*.jsonl")):
        events += Reader(path).read()
    return sorted(events, key=lambda event: event["at"])
