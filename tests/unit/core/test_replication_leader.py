"""A leader's view of its partition, rule by rule; the interplay is tests/simulation's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kraftpy.core.metadata import PartitionState
from kraftpy.core.replication import IsrProposal, Leadership, preferred_read_replica
from kraftpy.core.replication.leader import PROPOSAL_BACKOFF_MS
from kraftpy.protocol.errors import ErrorCode

LAG_MS = 1000
EPOCH = 5


class Partition:
    """A leadership of broker 1 whose log end and clock the tests move."""

    def __init__(
        self,
        isr: tuple[int, ...] = (1, 2, 3),
        replicas: tuple[int, ...] = (1, 2, 3),
        *,
        start: int = 10,
        high_watermark: int = 10,
        min_isr: int = 1,
        elr: tuple[int, ...] = (),
    ) -> None:
        self.end = start
        self.now_ms = 100_000
        self.active = {id_: 100 + id_ for id_ in replicas}
        self.state = PartitionState(
            1, EPOCH, 7, replicas, isr, tuple(bytes(16) for _ in replicas), elr
        )
        self.role = Leadership(
            1,
            self.state,
            epoch_start_offset=start,
            high_watermark=high_watermark,
            min_isr=min_isr,
            lag_max_ms=LAG_MS,
            active=self.active,
            now_ms=self.now_ms,
        )
        self.role.advance(start)

    @property
    def watermark(self) -> int:
        return self.role.high_watermark

    def append(self, count: int = 1) -> bool:
        self.end += count
        return self.role.advance(self.end)

    def fetch(self, id_: int, offset: int | None = None, *, epoch: int | None = None) -> bool:
        at = self.end if offset is None else offset
        life = self.active.get(id_, 100 + id_) if epoch is None else epoch
        assert self.role.check_fetch(id_, life, EPOCH) is ErrorCode.NONE
        return self.role.fetched(id_, life, at, 0, self.end, self.now_ms)

    def after(self, ms: int, *fetching: int) -> IsrProposal | None:
        """What is proposed while ms pass in which the followers named keep fetching."""
        proposed = None
        for _ in range(0, ms, 100):
            self.now_ms += 100
            for id_ in fetching:
                self.fetch(id_)
            _, proposal = self.role.propose(self.now_ms, self.end)
            proposed = proposal or proposed
        return proposed

    def propose(self) -> IsrProposal | None:
        return self.role.propose(self.now_ms, self.end)[1]

    def update(self, min_isr: int = 1, **changes: object) -> bool:
        epoch = self.state.partition_epoch + 1
        self.state = replace(self.state, partition_epoch=epoch, **changes)  # type: ignore[arg-type]
        return self.role.update(self.state, min_isr, self.end, self.now_ms)


def ids(proposal: IsrProposal | None) -> tuple[int, ...] | None:
    return None if proposal is None else tuple(id_ for id_, _ in proposal.isr)


# -- who joins while another one does


def test_who_catches_up_while_another_joins_is_next_without_fetching_again() -> None:
    partition = Partition((1,))
    partition.fetch(2)
    assert ids(partition.propose()) == (1, 2)
    partition.fetch(3)
    assert partition.propose() is None
    partition.update(isr=(1, 2))
    assert partition.role.expansion_due
    assert ids(partition.propose()) == (1, 2, 3)


# -- the high watermark


def test_alone_everything_is_committed_at_once() -> None:
    partition = Partition((1,), (1,))
    assert partition.append()
    assert partition.watermark == 11
    assert not partition.role.advance(11)  # told twice
    assert partition.propose() is None


def test_the_slowest_in_sync_replica_decides() -> None:
    partition = Partition()
    partition.append(5)
    assert not partition.fetch(2)
    assert partition.fetch(3, 12)
    assert partition.watermark == 12
    assert partition.fetch(3)
    assert partition.watermark == 15


def test_the_leader_itself_counts_with_what_it_has_flushed() -> None:
    partition = Partition()
    partition.end = 15
    partition.fetch(2)
    assert not partition.fetch(3)
    assert partition.role.advance(13)
    assert partition.watermark == 13


def test_it_never_goes_back() -> None:
    partition = Partition()
    partition.append(5)
    partition.fetch(2)
    partition.fetch(3)
    assert not partition.fetch(2, 11)  # a late request
    assert not partition.append()
    assert partition.watermark == 15


def test_who_has_not_fetched_in_this_epoch_holds_it() -> None:
    partition = Partition(high_watermark=4)
    assert partition.watermark == 4
    assert not partition.role.settled
    assert not partition.fetch(2)
    assert partition.fetch(3)
    assert partition.watermark == 10
    assert partition.role.settled


def test_a_watermark_from_before_is_cut_to_the_log() -> None:
    assert Partition((1, 2), start=10, high_watermark=99).watermark == 10


@pytest.mark.parametrize(
    ("isr", "elr", "min_isr", "moves"),
    [
        ((1, 2), (), 2, True),
        ((1, 2), (), 3, False),
        ((1,), (), 1, True),
        ((1,), (), 2, False),
        ((1, 2), (3,), 1, False),  # its members must have all that is committed
    ],
)
def test_it_stands_still_below_min_isr(
    isr: tuple[int, ...], elr: tuple[int, ...], min_isr: int, moves: bool
) -> None:
    partition = Partition(isr, min_isr=min_isr, elr=elr)
    partition.append()
    partition.fetch(2)
    assert (partition.watermark == 11) is moves
    small = len(isr) < min_isr
    assert partition.role.acks_all_error == (ErrorCode.NOT_ENOUGH_REPLICAS if small else 0)
    assert partition.role.timeout_error == (
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND if small else ErrorCode.REQUEST_TIMED_OUT
    )


def test_it_moves_on_when_the_metadata_says_so() -> None:
    partition = Partition((1, 2), min_isr=2)
    partition.append(3)
    partition.fetch(2, 11)
    assert partition.watermark == 11
    del partition.active[2]
    assert not partition.update(isr=(1,), elr=(2,), min_isr=2)
    assert partition.update(isr=(1,), elr=(), min_isr=1)
    assert partition.watermark == 13


# -- joining


def test_a_replica_joins_with_its_epoch_once_it_has_caught_up() -> None:
    partition = Partition((1, 2))
    partition.fetch(2)
    partition.append(5)
    partition.fetch(3, 12)
    assert not partition.role.expansion_due
    partition.fetch(3)
    assert partition.role.expansion_due
    proposal = partition.propose()
    assert proposal == IsrProposal(EPOCH, 7, ((1, 101), (2, 102), (3, 103)))
    assert partition.role.maximal_isr == {1, 2, 3}
    assert partition.role.isr == (1, 2)
    assert not partition.role.expansion_due
    assert partition.propose() is None  # one at a time


def test_it_does_not_join_below_the_watermark_or_the_epochs_start() -> None:
    partition = Partition((1, 2), start=10, high_watermark=5)
    partition.role.fetched(3, 103, 9, 0, 9, partition.now_ms)  # as if it had caught up
    partition.fetch(3, 9)
    assert partition.propose() is None
    partition.fetch(3)
    assert ids(partition.propose()) == (1, 2, 3)


@pytest.mark.parametrize("active", [None, 203])
def test_it_does_not_join_while_its_broker_is_fenced_or_has_a_newer_life(
    active: int | None,
) -> None:
    partition = Partition((1, 2))
    if active is None:
        del partition.active[3]
    else:
        partition.active[3] = active
    partition.fetch(3, epoch=103)
    assert not partition.role.expansion_due
    assert partition.propose() is None


def test_the_watermark_waits_for_who_is_about_to_join() -> None:
    partition = Partition((1,), (1, 2))
    partition.fetch(2)
    partition.propose()  # refused below: only its being close counts
    partition.role.answered(IsrProposal(0, 0, ()), ErrorCode.INELIGIBLE_REPLICA, 0)
    assert not partition.append()
    assert partition.fetch(2)
    del partition.active[2]
    partition.append()
    assert partition.watermark == 11


def test_but_not_for_one_that_is_gone() -> None:
    partition = Partition((1, 3), (1, 2, 3))
    partition.fetch(2)
    partition.update(isr=(1, 3))
    partition.append()
    partition.fetch(3)
    assert partition.watermark == 10
    del partition.active[2]
    assert partition.role.propose(partition.now_ms, partition.end)[0]
    assert partition.watermark == 11


# -- leaving


def test_a_replica_that_lags_too_long_leaves() -> None:
    partition = Partition()
    partition.append()
    assert partition.after(LAG_MS, 2) is None
    assert ids(partition.after(200, 2)) == (1, 2)
    assert partition.watermark == 10  # until that is committed
    assert partition.update(isr=(1, 2))
    assert partition.watermark == 11


def test_who_is_at_the_end_never_lags() -> None:
    partition = Partition()
    partition.fetch(2)
    partition.fetch(3)
    assert partition.after(10 * LAG_MS) is None


def test_who_keeps_pace_does_not_lag_though_never_at_the_end() -> None:
    partition = Partition((1, 2), (1, 2))
    for _ in range(30):
        before = partition.end
        partition.append(5)
        partition.now_ms += 100
        partition.fetch(2, before)
        assert partition.propose() is None


def test_a_leader_that_was_stopped_gives_its_followers_time() -> None:
    partition = Partition()
    partition.append()
    partition.now_ms += 60_000
    assert partition.propose() is None
    partition.fetch(2)
    assert ids(partition.after(LAG_MS, 2)) == (1, 2)


def test_rare_looks_find_a_replica_that_lags_all_the_same() -> None:
    partition = Partition((1, 2), (1, 2))
    partition.append()
    proposals = []
    for _ in range(4):
        partition.now_ms += LAG_MS // 2 + 20
        proposals.append(ids(partition.propose()))
    assert (1,) in proposals


# -- what becomes of a proposal


def test_a_refused_proposal_is_rolled_back_and_made_again_later() -> None:
    partition = Partition((1, 2))
    partition.fetch(3)
    proposal = partition.propose()
    assert proposal is not None
    partition.role.answered(proposal, ErrorCode.INELIGIBLE_REPLICA, partition.now_ms)
    assert partition.role.maximal_isr == {1, 2}
    partition.fetch(3)
    assert not partition.role.expansion_due
    assert partition.propose() is None
    partition.now_ms += PROPOSAL_BACKOFF_MS
    partition.fetch(3)
    assert partition.propose() == proposal


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NONE,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.FENCED_LEADER_EPOCH,
    ],
)
def test_an_accepted_one_counts_until_the_metadata_comes(error: ErrorCode) -> None:
    partition = Partition((1, 2))
    partition.fetch(3)
    proposal = partition.propose()
    assert proposal is not None
    partition.role.answered(proposal, error, partition.now_ms)
    assert partition.role.maximal_isr == {1, 2, 3}
    assert partition.role.isr == (1, 2)
    assert partition.after(LAG_MS, 2, 3) is None
    partition.update(isr=(1, 2))
    assert partition.role.maximal_isr == {1, 2}


def test_one_without_an_answer_counts_until_a_newer_state_comes() -> None:
    partition = Partition((1, 2))
    partition.fetch(3)
    proposal = partition.propose()
    assert proposal is not None
    partition.role.unanswered(proposal, partition.now_ms)
    assert partition.role.maximal_isr == {1, 2, 3}
    # Another one may be made, and be refused: the first may still be carried out.
    partition.now_ms += PROPOSAL_BACKOFF_MS
    again = partition.propose()
    assert again == proposal
    partition.role.answered(again, ErrorCode.INELIGIBLE_REPLICA, partition.now_ms)
    assert partition.role.maximal_isr == {1, 2, 3}
    partition.update(isr=(1, 2))
    assert partition.role.maximal_isr == {1, 2}


def test_who_may_have_joined_and_is_gone_does_not_hold_the_watermark_for_good() -> None:
    partition = Partition((1, 2))
    partition.fetch(3)
    proposal = partition.propose()
    assert proposal is not None
    partition.role.unanswered(proposal, partition.now_ms)
    del partition.active[3]
    partition.append()
    partition.fetch(2)
    assert partition.watermark == 10
    again = partition.after(LAG_MS + 200, 2)
    assert again is not None
    assert ids(again) == (1, 2), "the ISR as it is, for a newer partition epoch"
    assert partition.watermark == 10
    partition.update(isr=(1, 2))
    assert partition.watermark == 11
    assert partition.after(LAG_MS, 2) is None


def test_metadata_that_overtakes_the_answer_wins() -> None:
    partition = Partition((1, 2))
    partition.fetch(3)
    proposal = partition.propose()
    assert proposal is not None
    partition.update(isr=(1, 2, 3))
    partition.role.answered(proposal, ErrorCode.INELIGIBLE_REPLICA, partition.now_ms)
    assert partition.role.isr == (1, 2, 3)
    assert partition.role.maximal_isr == {1, 2, 3}


def test_an_older_state_changes_nothing() -> None:
    partition = Partition((1, 2))
    old = replace(partition.state, partition_epoch=6, isr=(1,))
    partition.role.update(old, 1, partition.end, partition.now_ms)
    assert partition.role.isr == (1, 2)


# -- whose fetch counts


@pytest.mark.parametrize(
    ("replica_id", "life", "epoch", "error"),
    [
        (2, 102, EPOCH, ErrorCode.NONE),
        (2, 103, EPOCH, ErrorCode.NONE),
        (2, -1, EPOCH, ErrorCode.NONE),  # too old to say
        (2, 101, EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER),  # a former life
        (4, 104, EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (2, 102, EPOCH - 1, ErrorCode.FENCED_LEADER_EPOCH),
        (2, 102, EPOCH + 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_which_fetches_are_answered(
    replica_id: int, life: int, epoch: int, error: ErrorCode
) -> None:
    partition = Partition()
    partition.fetch(2)
    assert partition.role.check_fetch(replica_id, life, epoch) is error


def test_added_replicas_count_once_they_are_in_sync_and_removed_ones_no_more() -> None:
    partition = Partition((1, 2), (1, 2))
    partition.active[4] = 104
    partition.update(replicas=(1, 2, 4), adding=(4,))
    partition.append()
    assert partition.fetch(2)
    assert partition.watermark == 11
    partition.fetch(4)
    assert ids(partition.propose()) == (1, 2, 4)
    partition.update(replicas=(1, 4), isr=(1, 4))
    assert [follower.id for follower in partition.role.followers] == [4]
    assert partition.role.check_fetch(2, 102, EPOCH) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_the_low_watermark_is_the_lowest_start_of_the_living() -> None:
    partition = Partition()
    role = partition.role
    assert role.low_watermark(8) == -1
    role.fetched(2, 102, 10, 3, 10, 0)
    role.fetched(3, 103, 10, 5, 10, 0)
    assert role.low_watermark(8) == 3
    del partition.active[2]
    assert role.low_watermark(8) == 5
    del partition.active[3]
    assert role.low_watermark(8) == 8


def test_a_consumer_reads_in_its_rack_from_who_has_most() -> None:
    partition = Partition()
    racks: dict[int, str | None] = {1: "a", 2: "b", 3: "b"}
    role = partition.role
    assert preferred_read_replica(role, racks, "a", "b", 9) is None  # nobody fetched yet
    role.fetched(2, 102, 9, 0, 10, 0)
    role.fetched(3, 103, 10, 4, 10, 0)
    assert preferred_read_replica(role, racks, "a", "b", 9) == 3
    assert preferred_read_replica(role, racks, "a", "b", 2) == 2
    assert preferred_read_replica(role, racks, "a", "a", 9) is None
    assert preferred_read_replica(role, racks, "a", "c", 9) is None
    assert preferred_read_replica(role, racks, "a", "", 9) is None
    assert preferred_read_replica(role, {1: "a", 3: "b"}, "a", "b", 2) is None
