"""What the controller that leads counts for quotas of changes, and what it gives back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kraftpy.core.quotas import CONTROLLER_MUTATION_RATE, USER, QuotaTable
from kraftpy.protocol.errors import ErrorCode
from kraftpy.quorum.mutations import Charge, MutationQuotas
from kraftpy.quorum.port import Applied, CommandResult, Entry, ProposalRefusedError

DONE = {"topics": [{"error": 0}]}
THERE_ALREADY = {"topics": [{"error": int(ErrorCode.TOPIC_ALREADY_EXISTS)}]}


class Quotas:
    """One partition a second for everybody: eleven at first."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.table = QuotaTable()
        self.table.set(((USER, None),), {CONTROLLER_MUTATION_RATE: 1.0})
        self.mutations = MutationQuotas(lambda: self.table, lambda: self.now_s)

    def take(self, partitions: int, *, strict: bool = True) -> Charge:
        charge = Charge("alice", "app", partitions, strict=strict)
        self.mutations.take(charge)
        return charge

    @property
    def used_up(self) -> bool:
        try:
            self.take(0)
        except ProposalRefusedError as refusal:
            return refusal.error is ErrorCode.THROTTLING_QUOTA_EXCEEDED
        return False


def outcome(value: dict[str, Any], error: ErrorCode = ErrorCode.NONE, *, fresh: bool = True) -> Any:
    future: asyncio.Future[Applied] = asyncio.get_running_loop().create_future()
    future.set_result(Applied(Entry(1, 1, b""), 1, CommandResult(error, None, value), fresh))
    return future


def test_what_is_sent_is_what_is_read() -> None:
    charge = Charge.unpack(Charge("alice", "app", 5, strict=True).pack())
    assert (charge.user, charge.client_id, charge.partitions, charge.strict) == (
        "alice", "app", 5, True,
    )  # fmt: skip


@pytest.mark.parametrize(
    "packed",
    [[], ["u"], ["u", "c", 1], ["u", "c", 1, 1], ["u", "c", -1, True], ["u", "c", 2**40, True],
     ["u", None, 1, True], [1, "c", 1, True], ["u", "c", 1.5, True]],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(packed: list[Any]) -> None:
    with pytest.raises(ValueError, match="shape"):
        Charge.unpack(packed)


def test_who_is_strict_is_refused_and_others_are_told_to_wait() -> None:
    quotas = Quotas()
    quotas.take(13)
    charge = Charge("alice", "app", 1, strict=True)
    with pytest.raises(ProposalRefusedError):
        quotas.mutations.take(charge)
    assert charge.wait_ms == 2_001
    assert quotas.take(1, strict=False).wait_ms == 3_001
    quotas.now_s += 3.0
    assert not quotas.used_up
    quotas.take(20)
    quotas.mutations.reset()
    assert not quotas.used_up


async def test_what_changed_nothing_is_given_back() -> None:
    quotas = Quotas()
    for lost in (
        outcome(THERE_ALREADY),
        outcome({}, ErrorCode.INVALID_REQUEST),
        outcome({}),
        outcome(DONE, fresh=False),
    ):
        charge = quotas.take(12)
        assert quotas.used_up
        quotas.mutations.settle(charge, lost)
        assert not quotas.used_up
    charge = quotas.take(12)
    quotas.mutations.settle(charge, outcome(DONE))
    assert quotas.used_up
