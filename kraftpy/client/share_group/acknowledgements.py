"""What is said of leased records, until it is known what became of that.

Rules:

* It goes to the leader that has leased the record, in the session in which it did: nobody else
  knows of the lease.
* A leader judges what is said of a partition with one request as a whole. So what comes too late is
  kept out of requests: it would have the rest refused.
* All that is said has an outcome, and is told of it: taken; refused, and why; or not known to be
  taken, because the connection broke. Then, and when it's refused, the records come again.
* The next `commit` says for each partition what went wrong first, or that nothing did.
* What the user's callback raises is logged, and changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from kraftpy.client.offsets import Partition
from kraftpy.client.share_group.leased import Key, Lease, Run, ShareRecord, Tenure, runs_of
from kraftpy.protocol.acknowledge_type import AcknowledgeType
from kraftpy.protocol.errors import KafkaError, error_code

_log = logging.getLogger(__name__)

Refusal = KafkaError | ConnectionError
"""Why something said of records didn't count, or isn't known to."""

AcknowledgementCallback = Callable[[Partition, "list[Run]", "Refusal | None"], None]
"""Told of a partition's offsets (first and last of each run) that something was said of."""


class Said:
    """What is said of a partition's records to one leader, and not sent or not answered yet.

    `own` is what the client says by itself, nobody wants to hear of.
    """

    __slots__ = ("by_user", "name", "own", "renewals")

    def __init__(self, name: Partition) -> None:
        self.name = name
        self.by_user: list[tuple[int, int, AcknowledgeType]] = []
        self.own: list[tuple[int, int, AcknowledgeType]] = []
        self.renewals: dict[int, ShareRecord[Any, Any]] = {}

    def add(self, offset: int, what: AcknowledgeType) -> None:
        """Says it of one record."""
        self.renewals.pop(offset, None)
        if self.by_user:
            first, last, before = self.by_user[-1]
            if before is what and last == offset - 1:
                self.by_user[-1] = first, offset, what
                return
        self.by_user.append((offset, offset, what))

    def batches(self, kind: Callable[..., Any]) -> list[Any]:
        """As a request has it."""
        renewals = [(offset, offset, AcknowledgeType.RENEW) for offset in self.renewals]
        return [
            kind(first, last, [int(what)])
            for first, last, what in sorted([*self.by_user, *self.own, *renewals])
        ]

    @property
    def runs(self) -> list[Run]:
        """What the user has said something of."""
        runs: list[Run] = runs_of(sorted(self.renewals))
        return sorted([(first, last) for first, last, _ in self.by_user] + runs)


class Acknowledgements:
    """All that one consumer says."""

    def __init__(self, group_id: str, callback: AcknowledgementCallback | None) -> None:
        self._group_id = group_id
        self._callback = callback
        self._pending: dict[Tenure, dict[Key, Said]] = {}
        self._since_s: dict[Tenure, float] = {}
        self._outcomes: dict[Partition, Refusal | None] = {}
        self.commits = 0
        """How many commits are waiting: what they will return is logged for nobody."""

    # -- saying

    def say(self, record: ShareRecord[Any, Any], what: AcknowledgeType) -> None:
        """Says it of a record that was handed out; it's sent later. ValueError if it has been."""
        lease = record.lease
        where = f"{record.topic}-{record.partition} at offset {record.offset}"
        if lease is None:
            raise ValueError(f"{where} is acknowledged already")
        now_s = asyncio.get_running_loop().time()
        over = lease.why_over(now_s)
        if what is not AcknowledgeType.RENEW:
            record.lease = None
        if over is not None:
            self._tell(lease.name, [(record.offset, record.offset)], over)
            return
        said = self._said(lease, now_s)
        if what is AcknowledgeType.RENEW:
            said.renewals[record.offset] = record
        else:
            said.add(record.offset, what)

    def is_renewed(self, record: ShareRecord[Any, Any]) -> bool:
        """Whether its lease is to be renewed with what is sent next."""
        lease = record.lease
        if lease is None:
            return False
        said = self._pending.get(lease.tenure, {}).get(lease.key)
        return said is not None and record.offset in said.renewals

    def say_own(self, lease: Lease, runs: Collection[Run], what: AcknowledgeType) -> None:
        """Says it of records that nobody was handed."""
        if runs:
            said = self._said(lease, asyncio.get_running_loop().time())
            said.own += [(first, last, what) for first, last in runs]

    def _said(self, lease: Lease, now_s: float) -> Said:
        self._since_s.setdefault(lease.tenure, now_s)
        partitions = self._pending.setdefault(lease.tenure, {})
        said = partitions.get(lease.key)
        if said is None:
            said = partitions[lease.key] = Said(lease.name)
        return said

    # -- sending

    def pending(self, tenure: Tenure) -> bool:
        """Whether there is anything to send."""
        return tenure in self._pending

    def keys(self, tenure: Tenure) -> Collection[Key]:
        """The partitions of which something is to be sent."""
        return self._pending.get(tenure, {}).keys()

    def renews(self, tenure: Tenure) -> bool:
        """Whether a lease is to be renewed."""
        return any(said.renewals for said in self._pending.get(tenure, {}).values())

    def since_s(self, tenure: Tenure) -> float:
        """When the oldest of what is to be sent was said."""
        return self._since_s.get(tenure, float("inf"))

    def take(self, tenure: Tenure, within: Collection[Key] | None = None) -> dict[Key, Said]:
        """What is to be sent now; with a fetch of some partitions, which renews nothing."""
        partitions = self._pending.pop(tenure, {})
        since_s = self._since_s.pop(tenure, 0.0)
        if within is None:
            return partitions
        rest = {key: said for key, said in partitions.items() if key not in within or said.renewals}
        if rest:
            self._pending[tenure], self._since_s[tenure] = rest, since_s
        return {key: said for key, said in partitions.items() if key not in rest}

    # -- outcomes

    def settle(
        self, sent: Mapping[Key, Said], refusals: Mapping[Key, Refusal], lock_s: float
    ) -> None:
        """What was sent is answered; what isn't refused counts, and renewals last `lock_s`."""
        deadline_s = asyncio.get_running_loop().time() + lock_s
        for key, said in sent.items():
            refusal = refusals.get(key)
            if refusal is None:
                for record in said.renewals.values():
                    lease = record.lease
                    if lease is not None:
                        record.lease = Lease(key, said.name, lease.tenure, deadline_s)
            self._tell(said.name, said.runs, refusal)

    def fail(self, sent: Mapping[Key, Said], refusal: Refusal) -> None:
        """All that was sent was refused, or isn't known to be taken."""
        self.settle(sent, dict.fromkeys(sent, refusal), 0.0)

    def lose(self, tenure: Tenure, refusal: Refusal) -> None:
        """The session is over; what wasn't sent never will be."""
        tenure.lost = refusal
        self.fail(self.take(tenure), refusal)

    def _tell(self, name: Partition, runs: list[Run], refusal: Refusal | None) -> None:
        if not runs:
            return
        if self._outcomes.get(name) is None:
            self._outcomes[name] = refusal
        if self._callback is not None:
            try:
                self._callback(name, runs, refusal)
            except Exception:
                _log.exception("group %r: the acknowledgement_callback failed", self._group_id)
        elif refusal is not None and not self.commits:
            count = sum(last - first + 1 for first, last in runs)
            _log.warning(
                "group %r: what was said of %d records of %s-%d doesn't count: %s",
                self._group_id,
                count,
                *name,
                refusal,
            )

    def outcomes(self) -> dict[Partition, Refusal | None]:
        """What became of everything since the last call."""
        outcomes, self._outcomes = self._outcomes, {}
        return outcomes


def refusal_of(code: int, message: str | None, name: Partition) -> KafkaError:
    """The error that a leader answers for a partition."""
    known = error_code(code)
    return KafkaError(known, f"{name[0]}-{name[1]}: {message or known.message}")
