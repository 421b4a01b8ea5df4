"""When the cluster is asked for what the page shows, and for how long an answer is used.

Rules:

* Nothing is asked unless somebody looks; `IDLE_S` after the last look the connections are closed,
  what was found is forgotten, and the thread ends.
* Of each part (`Key`) one refresh at most is under way, and the next one begins after its interval
  at the earliest, and after `PAUSE` times what the last one took (bounded by `PAUSE_MAX_S`): the
  larger the cluster is, and the busier, the more seldom it is asked.
* A viewer waits a moment for what is being asked (`wait_s`, a shorter one if there is an old answer
  to everything), then gets what there is, with its age and with what went wrong.
* At most `NAMED_MAX` topics and groups are kept that somebody asked for by name.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kraftpy.client.security import NO_SECURITY, Secures
from kraftpy.frozen import NamedTuple
from kraftpy.metrics.channel import Source
from kraftpy.page.asking import FAILURES
from kraftpy.page.model import Ends
from kraftpy.page.survey import Gone, Survey

IDLE_S = 60.0
NAMED_MAX = 16
PAUSE = 4
OLD_WAIT_S = 0.3
PAUSE_MAX_S = 10.0
STUCK_S = 10.0
INTERVALS_S = {
    "node": 1.0,
    "quorum": 2.0,
    "groups": 2.0,
    "transactions": 2.0,
    "topic": 2.0,
    "group": 2.0,
    "disks": 10.0,
    "ends": 2.0,
}
DISKS_S_PER_REPLICA = 0.003
ENDS_S_PER_PARTITION = 0.001
SILENT_INTERVAL_S = 2.0
"""While a broker doesn't answer; it is to be seen soon that it does again."""

logger = logging.getLogger(__name__)


class Key(NamedTuple):
    """A part: node, quorum, disks, ends, groups, transactions, or the topic or group of a name."""

    what: str
    name: str = ""


NODE, QUORUM, DISKS, GROUPS = Key("node"), Key("quorum"), Key("disks"), Key("groups")
TRANSACTIONS, ENDS = Key("transactions"), Key("ends")


@dataclass(frozen=True)
class Seen:
    """A part as it was last found: `value` None if never, `problem` if it can't be found now.

    `gone` says that there is nothing of that name.
    """

    value: Any = None
    age_s: float = 0.0
    problem: str = ""
    gone: bool = False


class _Slot:
    """A part on the loop."""

    def __init__(self) -> None:
        self.value: Any = None
        self.at_s = 0.0
        self.due_s = 0.0
        self.looked_s = 0.0
        self.problem = ""
        self.gone = False
        self.task: asyncio.Task[None] | None = None


class Watch:
    """Thread-safe: any thread may look."""

    def __init__(
        self, node_id: int, sources: Sequence[Source], security: Secures = NO_SECURITY
    ) -> None:
        self._security = security
        self._node_id = node_id
        self._sources = sources
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looked_s = 0.0
        self._slots: dict[Key, _Slot] = {}
        self._survey: Survey

    def look(self, *keys: Key, wait_s: float) -> dict[Key, Seen]:
        """The parts as they are after at most `wait_s`."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=self._run, args=(self._loop,), name="page", daemon=True
                ).start()
            self._looked_s = self._loop.time()
            looking = asyncio.run_coroutine_threadsafe(self._look(keys, wait_s), self._loop)
        return looking.result(wait_s + STUCK_S)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        self._survey = Survey(self._node_id, self._sources, self._security)
        self._slots = {}
        try:
            loop.run_until_complete(self._until_idle(loop))
            loop.run_until_complete(self._survey.close())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            loop.close()

    async def _until_idle(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            await asyncio.sleep(IDLE_S / 10)
            with self._lock:
                if loop.time() - self._looked_s > IDLE_S:
                    self._loop = None
                    break
        tasks = [slot.task for slot in self._slots.values() if slot.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._slots = {}

    async def _look(self, keys: Sequence[Key], wait_s: float) -> dict[Key, Seen]:
        loop = asyncio.get_running_loop()
        tasks = []
        for key in keys:
            slot = self._slot(key)
            slot.looked_s = loop.time()
            if slot.task is None and loop.time() >= slot.due_s:
                slot.task = loop.create_task(self._refresh(key, slot))
            if slot.task is not None:
                tasks.append(slot.task)
        if tasks:
            has_all = all(self._slot(key).value is not None for key in keys)
            await asyncio.wait(tasks, timeout=min(wait_s, OLD_WAIT_S) if has_all else wait_s)
        now_s = loop.time()
        return {key: _seen(self._slot(key), now_s) for key in keys}

    def _slot(self, key: Key) -> _Slot:
        slot = self._slots.get(key)
        if slot is None:
            named = [(slot.looked_s, each) for each, slot in self._slots.items() if each.name]
            if key.name and len(named) >= NAMED_MAX:
                forgotten = self._slots.pop(min(named)[1])
                if forgotten.task is not None:
                    forgotten.task.cancel()
            slot = self._slots[key] = _Slot()
        return slot

    async def _refresh(self, key: Key, slot: _Slot) -> None:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        try:
            slot.value = await self._asking(key)
            slot.at_s, slot.problem, slot.gone = loop.time(), "", False
        except Gone:
            slot.value, slot.problem, slot.gone = None, "", True
        except FAILURES as error:
            slot.problem = _words(error)
        except Exception:
            logger.exception("the page can't show %s", key.what)
            slot.problem = "a defect; the node's log has more"
        finally:
            slot.task = None
            took_s = loop.time() - started_s
            # The node's own processes answer in slices, and know first what is wrong.
            pause_s = 0.0 if key == NODE else min(PAUSE * took_s, PAUSE_MAX_S)
            slot.due_s = loop.time() + max(_interval_s(key, slot.value), pause_s)

    def _asking(self, key: Key) -> Awaitable[Any]:
        survey = self._survey
        parts: dict[str, Callable[[], Awaitable[Any]]] = {
            "node": survey.node,
            "quorum": survey.quorum,
            "disks": survey.disks,
            "ends": survey.ends,
            "groups": survey.groups,
            "transactions": survey.transactions,
            "topic": lambda: survey.topic(key.name),
            "group": lambda: survey.group(key.name),
        }
        return parts[key.what]()


def _interval_s(key: Key, value: Any) -> float:
    interval_s = INTERVALS_S[key.what]
    if key == DISKS and value is not None:
        if value.silent:
            return SILENT_INTERVAL_S
        replicas = max(map(len, value.replicas.values()), default=0)
        return max(interval_s, DISKS_S_PER_REPLICA * replicas)
    if key == ENDS and value is not None:
        ends: Ends = value
        return max(interval_s, ENDS_S_PER_PARTITION * ends.asked)
    return interval_s


def _seen(slot: _Slot, now_s: float) -> Seen:
    age_s = 0.0 if slot.value is None else now_s - slot.at_s
    return Seen(slot.value, age_s, slot.problem, slot.gone)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
