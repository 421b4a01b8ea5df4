"""A partition as its leader sees it, in one leader epoch: high watermark and in-sync replicas.

Rules:

* The ISR that counts is the maximal one: the committed ISR and whoever a proposal that may still
  be, or have been, carried out adds to it (rule 7). Only the stream of committed metadata changes
  the committed ISR. The answer to a proposal does not: it could overtake the commands before it
  (min.insync.replicas among them). A proposal whose outcome is unknown counts until a newer
  partition epoch comes, because it can't be carried out after that; if need be the leader asks for
  one by proposing the ISR as it is.
* The high watermark is below the log end of every member of the maximal ISR, and stands still while
  the committed ISR is smaller than min.insync.replicas or the partition has an ELR: the members of
  the ELR have to have all that is committed (KIP-966). It never goes back in one leader epoch.
* A follower counts only with a fetch of this leader epoch (rule 8) by its newest life (KIP-903).
* To join the ISR a replica has to have fetched in this epoch, from the high watermark or beyond,
  and from the epoch's start or beyond, before which a new leader's high watermark may be stale
  (rules 9 and 14); to have caught up lately, or it would leave at once; and its broker may be
  neither fenced nor shutting down (KIP-841).
* A follower lags when it is not at the log's end and was not for `replica.lag.time.max.ms` (rule
  19). Time in which the leader didn't run doesn't count: nobody's fetch could be heard.
* A replica that is about to join holds the high watermark back, as in Kafka: else a busy partition
  with one replica in sync never gets a second one.
* One proposal is in flight at a time. It is decided on the committed partition epoch, so that the
  state machine refuses it if that has changed.

With replication factor 1 all this is a comparison per append.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kraftpy.core.metadata.records import PartitionState
from kraftpy.core.replication.epochs import check_leader_epoch
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import ErrorCode

PROPOSAL_BACKOFF_MS: Final = 100
UNKNOWN: Final = -1

# After these the committed state has changed, or is about to by what was proposed: reassigned
# replicas get another leader with the ISR that completes them (NEW_LEADER_ELECTED).
_NEWER_STATE_COMES: Final = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
    }
)

_NO_LIMIT: Final = 2**63 - 1
_NEVER_MS: Final = -(2**62)


class Follower:
    """What the leader knows of another replica: what it fetched last, and in which life."""

    __slots__ = (
        "broker_epoch",
        "caught_up_ms",
        "fetched_ms",
        "id",
        "leader_end_offset",
        "log_start_offset",
        "offset",
    )

    def __init__(self, id_: int, caught_up_ms: int) -> None:
        self.id = id_
        self.broker_epoch = UNKNOWN
        self.offset = UNKNOWN  # its log end offset; unknown before its first fetch of the epoch
        self.log_start_offset = UNKNOWN
        self.caught_up_ms = caught_up_ms
        self.fetched_ms = _NEVER_MS
        self.leader_end_offset = _NO_LIMIT  # the leader's log end at the last fetch


class IsrProposal(NamedTuple):
    """What the leader asks AlterPartition for; `isr` has (broker id, broker epoch), -1: unknown.

    A replica whose epoch is unknown is in the ISR already.
    """

    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]


class Leadership:
    """The leader's role in `state.leader_epoch`; a new leader epoch gets a new one.

    `active` is a view, shared by all partitions and kept up to date by the caller, of the brokers
    that may be in an ISR: id to broker epoch of those that are neither fenced nor in controlled
    shutdown. `min_isr` is the effective min.insync.replicas. `now_ms` is a monotonic clock.
    `former` is the leadership that the broker resigned from, if it leads on in the same epoch.
    `expansion_due` says that `propose` has a replica to add: call it soon.
    """

    __slots__ = (
        "_active",
        "_followers",
        "_followers_end",
        "_node_id",
        "_own_end",
        "_pending",
        "_ran_ms",
        "_retry_ms",
        "_uncertain",
        "epoch_start_offset",
        "expansion_due",
        "high_watermark",
        "lag_max_ms",
        "leader_epoch",
        "maximal_isr",
        "min_isr",
        "state",
    )

    def __init__(
        self,
        node_id: int,
        state: PartitionState,
        *,
        epoch_start_offset: int,
        high_watermark: int,
        min_isr: int,
        lag_max_ms: int,
        active: Mapping[int, int],
        now_ms: int,
        former: Leadership | None = None,
    ) -> None:
        assert state.leader == node_id, (state, node_id)
        self._node_id = node_id
        self.state = state
        self.leader_epoch = state.leader_epoch
        self.epoch_start_offset = epoch_start_offset
        self.high_watermark = min(high_watermark, epoch_start_offset)
        self.min_isr = min_isr
        self.lag_max_ms = lag_max_ms
        self.expansion_due = False
        self._active = active
        self._own_end = self.high_watermark
        self._pending: IsrProposal | None = None
        # What was proposed on this very state may still be carried out.
        unsettled = former is not None and former.state == state
        self._uncertain = former.maximal_isr if former is not None and unsettled else frozenset()
        self._retry_ms = _NEVER_MS
        self._ran_ms = now_ms
        self._followers: dict[int, Follower] = {}
        self.maximal_isr: frozenset[int] = self._uncertain.union(state.isr)
        self._set_followers(now_ms)
        # Up to where the others let the high watermark go; -1 while it has to stand still.
        self._followers_end = self._limit(now_ms, epoch_start_offset)

    # -- what clients ask

    @property
    def isr(self) -> tuple[int, ...]:
        """The committed in-sync replicas."""
        return self.state.isr

    @property
    def settled(self) -> bool:
        """Whether the high watermark is that of the cluster: a new leader's may be behind (rule 9).

        While it isn't, ListOffsets of the latest offset is OFFSET_NOT_AVAILABLE.
        """
        return self.high_watermark >= self.epoch_start_offset

    @property
    def acks_all_error(self) -> ErrorCode:
        """NOT_ENOUGH_REPLICAS when an append with acks=all has to be refused, else NONE."""
        if len(self.state.isr) < self.min_isr:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        return ErrorCode.NONE

    @property
    def timeout_error(self) -> ErrorCode:
        """What an append that waited too long for the high watermark is told (rule 12).

        While it stands still such an append waits: the records are there and may yet be committed.
        """
        if self.acks_all_error:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.REQUEST_TIMED_OUT

    def low_watermark(self, log_start_offset: int) -> int:
        """Below which offset no living replica has records: what DeleteRecords waits for.

        -1 while a replica hasn't fetched yet.
        """
        active = self._active
        return min(
            (each.log_start_offset for each in self._followers.values() if each.id in active),
            default=log_start_offset,
        )

    @property
    def followers(self) -> Iterable[Follower]:
        """For metrics and for `preferred_read_replica`; not to be changed."""
        return self._followers.values()

    # -- what moves the high watermark

    def advance(self, own_end_offset: int) -> bool:
        """The leader's own records below the offset count; returns whether the watermark moved.

        They do once they are appended or, with `flush.messages=1`, flushed.
        """
        self._own_end = own_end_offset
        limit = self._followers_end
        if own_end_offset < limit:
            limit = own_end_offset
        if limit <= self.high_watermark:
            return False
        self.high_watermark = limit
        return True

    def check_fetch(self, replica_id: int, broker_epoch: int, leader_epoch: int) -> ErrorCode:
        """Whether a follower's fetch may be answered; see the package's docstring for the order.

        NOT_LEADER_OR_FOLLOWER for a broker that isn't a replica (the metadata here may be behind)
        or one whose newer life has fetched since. `broker_epoch` is -1 when it doesn't say.
        """
        follower = self._followers.get(replica_id)
        # What a broker had before it restarted says nothing of what it has now.
        if follower is None or -1 < broker_epoch < follower.broker_epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        # An offset of another epoch may be that of another log.
        return check_leader_epoch(leader_epoch, self.leader_epoch)

    def fetched(
        self,
        replica_id: int,
        broker_epoch: int,
        fetch_offset: int,
        log_start_offset: int,
        log_end_offset: int,
        now_ms: int,
    ) -> bool:
        """A follower's fetch, checked and not diverging, arrived: its log ends at `fetch_offset`.

        `log_start_offset` is the follower's, `log_end_offset` the leader's. Returns whether the
        high watermark moved.
        """
        follower = self._followers[replica_id]
        if broker_epoch > follower.broker_epoch:
            follower.broker_epoch = broker_epoch
        follower.offset = fetch_offset
        follower.log_start_offset = log_start_offset
        if fetch_offset >= log_end_offset:
            follower.caught_up_ms = now_ms
        elif fetch_offset >= follower.leader_end_offset:
            # It is where we were when it asked last: it had caught up then.
            follower.caught_up_ms = max(follower.caught_up_ms, follower.fetched_ms)
        follower.fetched_ms = now_ms
        follower.leader_end_offset = log_end_offset
        if (
            replica_id not in self.maximal_isr
            and self._pending is None
            and now_ms >= self._retry_ms
            and self._may_join(follower, log_end_offset, now_ms)
        ):
            self.expansion_due = True
        self._followers_end = self._limit(now_ms, log_end_offset)
        return self.advance(self._own_end)

    def caught_up(self, replica_id: int, at_ms: int) -> None:
        """A follower had all that the leader had at this time.

        For a fetch session, whose requests leave out the partitions without news.
        """
        follower = self._followers.get(replica_id)
        if follower is not None and at_ms > follower.caught_up_ms:
            follower.caught_up_ms = at_ms

    def update(self, state: PartitionState, min_isr: int, log_end_offset: int, now_ms: int) -> bool:
        """Takes over what the committed metadata says of this leader epoch.

        A state that isn't newer changes nothing but `min_isr`. Returns whether the watermark moved.
        """
        assert state.leader_epoch == self.leader_epoch, (state, self.leader_epoch)
        self.min_isr = min_isr
        if state.partition_epoch > self.state.partition_epoch:
            self.state = state
            # Whatever was proposed has been carried out, or was decided on an older state and
            # can't be any more.
            self._pending = None
            self._uncertain = frozenset()
            self._set_followers(now_ms)
            self._set_maximal_isr()
            # A replica that caught up during a proposal may not fetch again for a long while.
            self.expansion_due = any(
                follower.id not in self.maximal_isr
                and self._may_join(follower, log_end_offset, now_ms)
                for follower in self._followers.values()
            )
        self._followers_end = self._limit(now_ms, log_end_offset)
        return self.advance(self._own_end)

    def _set_followers(self, now_ms: int) -> None:
        """One `Follower` for each other replica; those that stay keep what is known of them."""
        old, in_sync = self._followers, self.state.isr
        self._followers = {
            replica: old.get(replica)
            or Follower(replica, now_ms if replica in in_sync else _NEVER_MS)
            for replica in self.state.replicas
            if replica != self._node_id
        }

    def _set_maximal_isr(self) -> None:
        # GUARD maximal-isr: the state machine may already count on who is proposed.
        proposed = {id_ for id_, _ in self._pending.isr} if self._pending is not None else ()
        self.maximal_isr = self._uncertain.union(self.state.isr, proposed)

    def _limit(self, now_ms: int, log_end_offset: int) -> int:
        """Up to where the others let the high watermark go, -1 if it has to stand still."""
        if not self._may_advance():
            return UNKNOWN
        limit = _NO_LIMIT
        for follower in self._followers.values():
            if follower.offset < limit and (
                follower.id in self.maximal_isr or self._joins(follower, log_end_offset, now_ms)
            ):
                limit = follower.offset
        return limit

    def _may_advance(self) -> bool:
        # GUARD min-isr: whoever the ELR has must have all that is committed. A replica that is only
        # proposed doesn't make the ISR large enough: the ELR is given up with the ISR's change, not
        # before.
        return len(self.state.isr) >= self.min_isr and not self.state.elr

    def _joins(self, follower: Follower, log_end_offset: int, now_ms: int) -> bool:
        """Whether the follower is so close that the high watermark waits for it."""
        return self._is_active(follower) and self._is_caught_up(follower, log_end_offset, now_ms)

    def _is_active(self, follower: Follower) -> bool:
        epoch = self._active.get(follower.id)
        return epoch is not None and follower.broker_epoch in (epoch, UNKNOWN)

    def _is_caught_up(self, follower: Follower, log_end_offset: int, now_ms: int) -> bool:
        return (
            follower.offset >= log_end_offset or now_ms - follower.caught_up_ms <= self.lag_max_ms
        )

    # -- changes of the ISR

    def _may_join(self, follower: Follower, log_end_offset: int, now_ms: int) -> bool:
        # GUARD join: who joins must have all that is committed, whatever is committed: below the
        # epoch's start that may be more than our high watermark says.
        return (
            follower.offset >= self.high_watermark
            and follower.offset >= self.epoch_start_offset
            and self._joins(follower, log_end_offset, now_ms)
        )

    def propose(self, now_ms: int, log_end_offset: int) -> tuple[bool, IsrProposal | None]:
        """Call it regularly, and soon when `expansion_due`.

        Regularly: at least twice in `replica.lag.time.max.ms`. Returns whether the high watermark
        moved, and the change of the ISR to propose, if there is one and none is in flight. Its
        outcome goes to `answered` or `unanswered`.
        """
        self._forgive_pause(now_ms)
        self.expansion_due = False
        proposal = None
        if self._pending is None and now_ms >= self._retry_ms:
            isr = self._wanted_isr(now_ms, log_end_offset)
            # One that may have joined, and is gone, would hold the high watermark back for good.
            if isr != self.state.isr or not self._uncertain.issubset(isr):
                proposal = IsrProposal(
                    self.leader_epoch,
                    self.state.partition_epoch,
                    tuple((id_, self._broker_epoch(id_)) for id_ in isr),
                )
                self._pending = proposal
                self._set_maximal_isr()
        self._followers_end = self._limit(now_ms, log_end_offset)
        return self.advance(self._own_end), proposal

    def _forgive_pause(self, now_ms: int) -> None:
        """The leader itself was stopped: its followers get time to be heard again (rule 19)."""
        late_ms = now_ms - self._ran_ms - self.lag_max_ms // 2
        self._ran_ms = now_ms
        if late_ms > 0:
            for id_ in self.state.isr:
                follower = self._followers.get(id_)
                if follower is not None:
                    follower.caught_up_ms = min(follower.caught_up_ms + late_ms, now_ms)

    def _wanted_isr(self, now_ms: int, log_end_offset: int) -> tuple[int, ...]:
        """The ISR without the replicas that lag and with those that may join."""
        stay = [
            id_
            for id_ in self.state.isr
            if id_ not in self._followers
            or self._is_caught_up(self._followers[id_], log_end_offset, now_ms)
        ]
        join = [
            follower.id
            for follower in self._followers.values()
            if follower.id not in self.state.isr
            and self._may_join(follower, log_end_offset, now_ms)
        ]
        return (*stay, *join)

    def _broker_epoch(self, id_: int) -> int:
        if id_ == self._node_id:
            return self._active.get(id_, UNKNOWN)
        return self._followers[id_].broker_epoch

    def answered(self, proposal: IsrProposal, error: ErrorCode, now_ms: int) -> None:
        """The state machine's verdict on a proposal, from the committed log.

        A refused one is rolled back. Else the replicas that it names count until the newer state
        arrives with the metadata.
        """
        if proposal is self._pending and error not in _NEWER_STATE_COMES:
            self._give_up_proposal(now_ms)

    def unanswered(self, proposal: IsrProposal, now_ms: int) -> None:
        """Nobody knows whether the proposal was, or will be, carried out."""
        if proposal is self._pending:
            # GUARD uncertain: its replicas count until a newer state says that it is decided.
            self._uncertain = self._uncertain.union(id_ for id_, _ in proposal.isr)
            self._give_up_proposal(now_ms)

    def _give_up_proposal(self, now_ms: int) -> None:
        self._pending = None
        self._retry_ms = now_ms + PROPOSAL_BACKOFF_MS
        self._set_maximal_isr()
