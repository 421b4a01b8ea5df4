"""What clients may have changed by the controller that leads, `controller_mutation_rate` (KIP-599).

Rules:

* A broker that proposes what a client has asked for names user, client id, and how many partitions
  that creates or deletes. While the bucket of the client's quota has tokens a proposal goes
  through, however many it takes; after that one that is `strict` is refused, and another one
  goes through, too, and is told how long its client has to wait.
* Tokens of what changed nothing are given back: of what the rules refuse, and of a retry.
* Only the voter that leads counts. A new leader begins with full buckets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kraftpy.core.quotas import MutationLedger, QuotaTable
from kraftpy.protocol.errors import ErrorCode
from kraftpy.quorum.port import Applied, ProposalRefusedError

if TYPE_CHECKING:
    import asyncio

PARTITIONS_MAX: Final = 2**31 - 1


class Charge:
    """What a proposal counts for: for whom, and how many partitions.

    `wait_ms` is what was answered: for how long the client is to wait.
    """

    __slots__ = ("client_id", "partitions", "strict", "user", "wait_ms")

    def __init__(self, user: str, client_id: str, partitions: int, *, strict: bool) -> None:
        self.user = user
        self.client_id = client_id
        self.partitions = partitions
        self.strict = strict
        self.wait_ms = 0

    def pack(self) -> list[Any]:
        """Plain, for msgpack."""
        return [self.user, self.client_id, self.partitions, self.strict]

    @classmethod
    def unpack(cls, packed: list[Any]) -> Charge:
        """What `pack` returned. Raises `ValueError`."""
        match packed:
            case [str(user), str(client_id), int(partitions), bool(strict)] if (
                0 <= partitions <= PARTITIONS_MAX
            ):
                return cls(user, client_id, partitions, strict=strict)
        raise ValueError("what a proposal counts for has the wrong shape")


class MutationQuotas:
    """The buckets of the voter that leads; `now_s` is a clock that nobody sets."""

    def __init__(self, quotas: Callable[[], QuotaTable], now_s: Callable[[], float]) -> None:
        self._quotas = quotas
        self._now_s = now_s
        self._ledger = MutationLedger()

    def reset(self) -> None:
        """Another term has begun."""
        self._ledger = MutationLedger()

    def take(self, charge: Charge) -> None:
        """Takes its tokens, and says in it how long to wait.

        Raises ProposalRefusedError(THROTTLING_QUOTA_EXCEEDED).
        """
        passes, wait_s = self._ledger.take(
            self._quotas(),
            charge.user,
            charge.client_id,
            charge.partitions,
            self._now_s(),
            strict=charge.strict,
        )
        charge.wait_ms = min(int(wait_s * 1000) + (wait_s > 0), PARTITIONS_MAX)
        if not passes:
            raise ProposalRefusedError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED, "the quota controller_mutation_rate is used up"
            )

    def settle(self, charge: Charge, future: asyncio.Future[Applied]) -> None:
        """The proposal has an outcome: gives back what it hasn't used."""
        if not future.cancelled() and future.exception() is None and _has_changed(future.result()):
            return
        self._ledger.give_back(
            self._quotas(), charge.user, charge.client_id, charge.partitions, self._now_s()
        )


def _has_changed(applied: Applied) -> bool:
    """Whether the command has done something, or has said that it would."""
    if not applied.fresh or applied.result.error is not ErrorCode.NONE:
        return False
    return any(
        isinstance(answer, dict) and answer.get("error") == ErrorCode.NONE
        for answers in applied.result.value.values()
        if isinstance(answers, list)
        for answer in answers
    )
