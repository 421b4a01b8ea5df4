"""Claims of members that share a partition: whose records they are, and what plain commits do."""

from __future__ import annotations

from typing import Any

import pytest

from kraftpy.core.groups import Client
from kraftpy.protocol import messages
from kraftpy.protocol.codec import encode_versioned
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.key_hash import hashes_of
from kraftpy.protocol.key_shares import encode_shares

from .claims_driver import ClaimsDriver, ranges, sliced

OK = ErrorCode.NONE
NOT_OWNED = ErrorCode.KEY_RANGE_NOT_OWNED
FIRST, SECOND = (0, 32_767), (32_768, 65_535)
CLIENT = Client(3, "c", "/127.0.0.1")


class Members:
    """Two members, of which each has half of a partition, as their assignments say."""

    def __init__(self, *user_data: bytes) -> None:
        self.driver = ClaimsDriver(
            group_initial_rebalance_delay_ms=0, group_min_session_timeout_ms=1
        )
        shares = [{("t", 0): [FIRST]}, {("t", 0): [SECOND]}]
        self.user_data = user_data or tuple(encode_shares(each) for each in shares)
        driver = self.driver
        joins = [self._join("one"), self._join("other")]
        while not all(token in driver.replies for token in joins):
            deadline_ms = driver.machine.next_deadline()
            assert deadline_ms is not None
            driver.now_ms = max(driver.now_ms, deadline_ms)
            driver.carry_out(driver.machine.handle_timers(driver.now_ms))
        answers = [driver.replies[token] for token in joins]
        self.ids = [answer.member_id for answer in answers]
        self.ids.sort(key=lambda member: member != answers[0].leader)
        self.generation = answers[0].generation_id
        for member in self.ids:
            self._sync(member)
        assert self.driver.answer(self.plain(0, 0)) == (OK, None)

    def _join(self, name: str) -> str:
        kinds = messages.JoinGroupRequest
        request = kinds(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=[kinds.JoinGroupRequestProtocol("range", b"")],
        )
        token = f"join-{name}"
        driver = self.driver
        driver.carry_out(driver.machine.join(token, request, CLIENT, token, driver.now_ms))
        return token

    def _sync(self, member_id: str) -> None:
        kinds = messages.SyncGroupRequest
        assignments = [
            kinds.SyncGroupRequestAssignment(member, _assignment(user_data))
            for member, user_data in zip(self.ids, self.user_data, strict=True)
        ]
        is_leader = member_id == self.ids[0]
        request = kinds(
            group_id="g",
            generation_id=self.generation,
            member_id=member_id,
            assignments=assignments if is_leader else [],
        )
        token = f"sync-{member_id}"
        driver = self.driver
        driver.carry_out(driver.machine.sync(token, request, driver.now_ms))
        assert driver.replies[token].error_code == OK

    def claim(self, member: int, tags: dict[int, bytes], **who: Any) -> str:
        return self.driver.claim(tags, **self._who(member) | who)

    def plain(self, member: int, offset: int, **who: Any) -> str:
        return self.driver.plain(offset, **self._who(member) | who)

    def _who(self, member: int) -> dict[str, Any]:
        return {"member": self.ids[member], "generation": self.generation}


def _assignment(user_data: bytes) -> bytes:
    kinds = messages.ConsumerProtocolAssignment
    partitions = [kinds.TopicPartition("t", [0])]
    message = kinds(assigned_partitions=partitions, user_data=user_data)
    return encode_versioned("ConsumerProtocolAssignment", 1, message)


def test_each_claims_of_its_own_share() -> None:
    members = Members()
    mine, others = hashes_of(*FIRST), hashes_of(*SECOND)
    answer = members.driver.answer
    assert answer(members.claim(0, sliced((mine, [(0, 9)])))) == (OK, 0)
    assert answer(members.claim(0, sliced((others, [(0, 9)])))) == (NOT_OWNED, 0)
    across = (mine[1], others[0])
    assert answer(members.claim(0, sliced((across, [(0, 9)])))) == (NOT_OWNED, 0)
    assert answer(members.claim(0, ranges((0, 9)))) == (NOT_OWNED, 0)
    assert answer(members.claim(1, sliced((others, [(0, 4)])))) == (OK, 5)
    assert members.driver.claimed() == [(*mine, 0, 9)]


def test_what_is_nobodys_anybody_may_claim() -> None:
    """Slots that are being handed over, whose last records their owner has just finished."""
    members = Members(encode_shares({("t", 0): [(0, 9)]}), encode_shares({("t", 0): [(20, 29)]}))
    between = hashes_of(10, 19)
    answer = members.driver.answer
    assert answer(members.claim(0, sliced((between, [(3, 4)])))) == (OK, 0)
    assert answer(members.claim(1, sliced((between, [(5, 6)])))) == (OK, 0)


@pytest.mark.parametrize("user_data", [b"", b"theirs", b"kpks", b"kpks\0\0\xff\xff\xff\xff"])
def test_assignments_that_say_nothing_of_shares_refuse_nobody(user_data: bytes) -> None:
    members = Members(user_data, user_data)
    assert members.driver.answer(members.claim(0, ranges((3, 4)))) == (OK, 0)


def test_zombies_claim_nothing() -> None:
    members = Members()
    tags = sliced((hashes_of(*FIRST), [(0, 9)]))
    answer = members.driver.answer
    old = members.claim(0, tags, generation=members.generation - 1)
    assert answer(old)[0] is ErrorCode.ILLEGAL_GENERATION
    unknown = members.driver.claim(tags, member="who", generation=members.generation)
    assert answer(unknown)[0] is ErrorCode.UNKNOWN_MEMBER_ID
    outside = members.driver.claim(tags)
    assert answer(outside)[0] is ErrorCode.UNKNOWN_MEMBER_ID
    assert members.driver.claimed() == []


def test_a_members_plain_commit_keeps_what_is_claimed_above() -> None:
    members = Members()
    hashes = hashes_of(*FIRST)
    members.claim(0, sliced((hashes, [(3, 4), (8, 9)])))
    assert members.driver.answer(members.plain(1, 6)) == (OK, None)
    assert (members.driver.stable, members.driver.claimed()) == (6, [(*hashes, 8, 9)])
    assert members.driver.answer(members.plain(1, 6)) == (OK, None)
    assert members.driver.claimed() == [(*hashes, 8, 9)]
    assert members.driver.answer(members.plain(1, 5)) == (OK, None)
    assert (members.driver.stable, members.driver.claimed()) == (5, [])
    assert members.driver.living() == set()


def test_what_is_in_flight_counts_for_whether_it_is_lowered() -> None:
    members = Members()
    hashes = hashes_of(*FIRST)
    driver = members.driver
    members.claim(0, sliced((hashes, [(8, 9)])))
    driver.commits = False
    higher, lower = members.plain(1, 6), members.plain(1, 4)
    assert [len(queue) for queue in driver.in_flight] == [1, 0]  # the lower one waits
    driver.settle(0)
    assert (driver.stable, driver.claimed()) == (6, [(*hashes, 8, 9)])
    driver.settle_all()
    assert (driver.answer(higher), driver.answer(lower)) == ((OK, None), (OK, None))
    assert (driver.stable, driver.claimed(), driver.living()) == (4, [], set())
