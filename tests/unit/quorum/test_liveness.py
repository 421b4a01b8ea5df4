"""Whom a controller fences, and when: the sessions of brokers without a clock."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from kraftpy.quorum.liveness import (
    CONNECT_MS,
    NO_EPOCH,
    RECENT_MS,
    RETRY_MS,
    STALL_MS,
    SUSPICION_MS,
    Fencing,
    Liveness,
)

TIMEOUT_MS, GRACE_MS = 9_000, 250


class Clockwork:
    """Drives a `Liveness` as the controller does: it ticks whenever that asked for it."""

    def __init__(self, *, leads: bool = True) -> None:
        self.now_ms = 1_000_000.0
        self.liveness = Liveness(TIMEOUT_MS, GRACE_MS)
        self.unfenced: dict[int, int] = {}
        self.fenced: list[tuple[float, Fencing]] = []
        self.started_ms = self.now_ms
        self.carries_out = True
        self.tick()
        if leads:
            self.liveness.lead(self.now_ms)

    def tick(self) -> None:
        for fencing in self.liveness.tick(self.unfenced, self.now_ms):
            self.fenced.append((self.now_ms - self.started_ms, fencing))
            if self.carries_out:
                self.unfenced.pop(fencing.broker_id)
                self.liveness.carried_out(fencing.broker_id, fencing.broker_epoch)

    def run(self, duration_ms: float, speaking: Mapping[int, tuple[int, int]] = {}) -> None:
        """Let time pass; `speaking` connections send a heartbeat every 2 s, at once first."""
        end_ms, beat_ms = self.now_ms + duration_ms, self.now_ms
        while self.now_ms < end_ms:
            if self.now_ms >= beat_ms:
                beat_ms += 2_000
                for connection, (broker_id, epoch) in speaking.items():
                    self.liveness.heard(connection, broker_id, epoch, self.now_ms)
            self.tick()
            self.now_ms = min(max(self.liveness.wake_at_ms, self.now_ms + 1), end_ms, beat_ms)
        self.tick()

    def ids(self) -> list[int]:
        return [fencing.broker_id for _, fencing in self.fenced]


def test_a_broker_that_is_heard_stays() -> None:
    clock = Clockwork()
    clock.unfenced = {1: 10, 2: 20}
    clock.run(60_000, {100: (1, 10), 200: (2, 20)})
    assert clock.ids() == []


def test_a_silent_connection_is_fenced_at_the_session_timeout() -> None:
    clock = Clockwork()
    clock.unfenced = {1: 10}
    clock.liveness.heard(100, 1, 10, clock.now_ms)
    clock.run(30_000)
    assert clock.fenced == [(TIMEOUT_MS, Fencing(1, 10, True))]


def test_a_broken_connection_is_fenced_after_the_grace() -> None:
    clock = Clockwork()
    clock.unfenced = {1: 10}
    clock.liveness.heard(100, 1, 10, clock.now_ms)
    clock.liveness.disconnected(100, clock.now_ms)
    clock.run(30_000)
    assert clock.fenced == [(GRACE_MS, Fencing(1, 10, False))]


def test_back_within_the_grace_is_in_time() -> None:
    clock = Clockwork()
    clock.unfenced = {1: 10}
    clock.liveness.heard(100, 1, 10, clock.now_ms)
    clock.liveness.disconnected(100, clock.now_ms)
    clock.run(GRACE_MS - 1)
    clock.run(30_000, {101: (1, 10)})
    assert clock.ids() == []


def test_one_of_two_connections_is_enough() -> None:
    """A broker that dials again before its old connection was seen to break."""
    clock = Clockwork()
    clock.unfenced = {1: 10}
    clock.liveness.heard(100, 1, 10, clock.now_ms)
    clock.liveness.heard(101, 1, 10, clock.now_ms)
    clock.liveness.disconnected(100, clock.now_ms)
    clock.run(TIMEOUT_MS - 1)
    assert clock.ids() == []
    clock.liveness.disconnected(101, clock.now_ms)
    clock.liveness.disconnected(101, clock.now_ms)
    clock.run(GRACE_MS)
    assert clock.ids() == [1]


@pytest.mark.parametrize("epoch", [NO_EPOCH, 5])
def test_another_process_under_the_same_id_prolongs_nothing(epoch: int) -> None:
    clock = Clockwork()
    clock.unfenced = {1: 10}
    clock.liveness.heard(100, 1, 10, clock.now_ms)
    clock.liveness.disconnected(100, clock.now_ms)
    clock.run(30_000, {200: (1, epoch)})
    assert clock.fenced == [(GRACE_MS, Fencing(1, 10, False))]


def test_the_end_of_an_old_life_does_not_end_the_new_one() -> None:
    clock = Clockwork()
    clock.liveness.heard(100, 1, 10, clock.now_ms)
    clock.liveness.heard(200, 1, NO_EPOCH, clock.now_ms)
    clock.liveness.heard(200, 1, 11, clock.now_ms)
    clock.unfenced = {1: 11}
    clock.liveness.disconnected(100, clock.now_ms)
    clock.run(30_000, {200: (1, 11)})
    assert clock.ids() == []


def test_the_epoch_that_a_connection_speaks_for_can_change() -> None:
    """It registers over the connection that it has already; losing that one then counts."""
    clock = Clockwork()
    clock.liveness.heard(100, 1, NO_EPOCH, clock.now_ms)
    clock.run(20_000)
    clock.liveness.heard(100, 1, 30, clock.now_ms)
    clock.unfenced = {1: 30}
    clock.run(100)
    clock.liveness.disconnected(100, clock.now_ms)
    clock.run(GRACE_MS)
    assert clock.ids() == [1]


def test_a_new_leader_gives_those_it_has_never_seen_time_to_connect() -> None:
    clock = Clockwork()
    clock.unfenced = {1: 10, 2: 20}
    clock.run(CONNECT_MS / 2)
    clock.run(30_000, {100: (1, 10)})
    assert clock.fenced == [(CONNECT_MS, Fencing(2, 20, False))]


def test_a_new_leader_gives_the_connected_a_fresh_session() -> None:
    clock = Clockwork(leads=False)
    clock.unfenced = {1: 10}
    clock.liveness.heard(100, 1, 10, clock.now_ms)
    clock.run(TIMEOUT_MS - 1)
    clock.liveness.lead(clock.now_ms)
    clock.run(TIMEOUT_MS - 1)
    assert clock.ids() == []
    clock.run(1)
    assert clock.ids() == [1]


def test_who_died_with_the_old_leader_is_fenced_at_once() -> None:
    """A node that was the Raft leader and led partitions: its broker's connection broke too."""
    clock = Clockwork(leads=False)
    clock.unfenced = {1: 10, 2: 20}
    clock.liveness.heard(100, 1, 10, clock.now_ms)
    clock.liveness.heard(200, 2, 20, clock.now_ms)
    clock.run(5_000, {100: (1, 10), 200: (2, 20)})
    clock.liveness.disconnected(100, clock.now_ms)
    clock.run(400)
    assert clock.ids() == [], "not the leader yet"
    clock.liveness.lead(clock.now_ms)
    clock.tick()
    assert clock.fenced == [(5_400, Fencing(1, 10, False))]


def test_a_connection_that_broke_long_before_the_election_gets_time() -> None:
    """The old leader did not fence that broker: only the way between these two was broken."""
    clock = Clockwork(leads=False)
    clock.unfenced = {1: 10}
    clock.liveness.heard(100, 1, 10, clock.now_ms)
    clock.liveness.disconnected(100, clock.now_ms)
    clock.run(RECENT_MS + 1)
    clock.liveness.lead(clock.now_ms)
    clock.run(CONNECT_MS - 1)
    assert clock.ids() == []
    clock.run(1)
    assert clock.ids() == [1]


def test_only_the_leader_decides() -> None:
    clock = Clockwork()
    clock.unfenced = {1: 10}
    clock.liveness.leader_changed(True, clock.now_ms)
    clock.run(30_000)
    assert clock.ids() == []
    clock.liveness.lead(clock.now_ms)
    clock.run(CONNECT_MS)
    assert clock.ids() == [1]


def test_a_decision_is_given_once_and_again_after_it_failed() -> None:
    clock = Clockwork()
    clock.carries_out = False
    clock.unfenced = {1: 10, 2: 20}
    clock.liveness.heard(200, 2, 20, clock.now_ms)
    clock.run(TIMEOUT_MS)
    assert sorted(clock.ids()) == [1, 2]
    clock.run(30_000)
    assert len(clock.ids()) == 2, "under way"
    clock.liveness.failed(1, 10, clock.now_ms)
    clock.liveness.failed(2, 20, clock.now_ms)
    clock.run(RETRY_MS - 1)
    assert len(clock.ids()) == 2
    clock.run(1)
    assert sorted(clock.ids()) == [1, 1, 2, 2]


def test_a_broker_that_was_heard_again_meanwhile_need_not_be_fenced_after_all() -> None:
    clock = Clockwork()
    clock.carries_out = False
    clock.unfenced = {1: 10}
    clock.liveness.heard(100, 1, 10, clock.now_ms)
    clock.run(TIMEOUT_MS)
    clock.liveness.failed(1, 10, clock.now_ms)
    clock.run(30_000, {100: (1, 10)})
    assert clock.ids() == [1]


def test_fenced_and_unfenced_again_between_two_ticks_is_looked_after_again() -> None:
    clock = Clockwork()
    clock.unfenced = {1: 10}
    clock.liveness.heard(100, 1, 10, clock.now_ms)
    clock.run(TIMEOUT_MS)
    assert clock.ids() == [1]
    clock.liveness.heard(100, 1, 10, clock.now_ms)
    clock.unfenced = {1: 10}
    clock.run(TIMEOUT_MS - 1)
    assert clock.ids() == [1]
    clock.run(1)
    assert clock.ids() == [1, 1]


def test_time_in_which_the_controller_stood_still_is_nobodys_fault() -> None:
    clock = Clockwork()
    clock.unfenced = {1: 10, 2: 20, 3: 30}
    speaking = {100: (1, 10), 200: (2, 20), 300: (3, 30)}
    clock.run(5_000, speaking)
    clock.liveness.disconnected(300, clock.now_ms)
    clock.now_ms += 60_000  # SIGSTOP, or a machine that swaps
    clock.tick()
    assert clock.ids() == []
    clock.run(20_000, {100: (1, 10)})
    assert [fencing.broker_id for _, fencing in clock.fenced] == [3, 2]
    assert clock.fenced[0][0] <= 65_000 + GRACE_MS
    assert clock.fenced[1][0] <= 65_000 + TIMEOUT_MS


def test_a_tick_that_is_a_little_late_is_no_stall() -> None:
    clock = Clockwork()
    clock.unfenced = {1: 10}
    clock.liveness.heard(100, 1, 10, clock.now_ms)
    while not clock.fenced:
        clock.now_ms = clock.liveness.wake_at_ms + STALL_MS
        clock.tick()
        assert clock.now_ms - clock.started_ms < TIMEOUT_MS + 4 * STALL_MS
    assert clock.ids() == [1]


@pytest.mark.parametrize("leads", [True, False])
def test_a_broken_connection_makes_a_suspect_until_it_is_back_or_fenced(leads: bool) -> None:
    clock = Clockwork(leads=leads)
    clock.unfenced = {1: 10, 2: 20}
    both = {100: (1, 10), 200: (2, 20)}
    clock.run(1_000, both)
    assert clock.liveness.suspects == set()
    clock.liveness.disconnected(100, clock.now_ms)
    assert clock.liveness.suspects == {1}
    clock.liveness.heard(101, 1, 10, clock.now_ms)
    assert clock.liveness.suspects == set()
    clock.liveness.disconnected(101, clock.now_ms)
    clock.run(GRACE_MS - 1, {200: (2, 20)})
    assert clock.liveness.suspects == {1}
    clock.unfenced.pop(1)
    clock.tick()
    assert clock.liveness.suspects == set()


def test_a_suspicion_that_leads_to_nothing_ends() -> None:
    """Only the way between this voter and the broker is broken: the leader doesn't fence it."""
    clock = Clockwork(leads=False)
    clock.liveness.leader_changed(True, clock.now_ms)
    clock.unfenced = {1: 10}
    clock.run(1_000, {100: (1, 10)})
    clock.liveness.disconnected(100, clock.now_ms)
    clock.run(SUSPICION_MS - 1)
    assert clock.liveness.suspects == {1}
    clock.run(1)
    assert clock.liveness.suspects == set()


def test_a_suspicion_lasts_as_long_as_there_is_no_leader_to_clear_it() -> None:
    clock = Clockwork(leads=False)
    clock.liveness.leader_changed(True, clock.now_ms)
    clock.unfenced = {1: 10}
    clock.run(1_000, {100: (1, 10)})
    clock.liveness.disconnected(100, clock.now_ms)
    clock.liveness.leader_changed(False, clock.now_ms)
    clock.run(10 * SUSPICION_MS)
    assert clock.liveness.suspects == {1}
    clock.liveness.leader_changed(True, clock.now_ms)
    clock.run(SUSPICION_MS - 1)
    assert clock.liveness.suspects == {1}
    clock.run(1)
    assert clock.liveness.suspects == set()


def test_who_serves_nothing_is_no_suspect() -> None:
    clock = Clockwork()
    clock.run(1_000, {100: (1, 10), 200: (2, NO_EPOCH)})
    clock.liveness.disconnected(100, clock.now_ms)
    clock.liveness.disconnected(200, clock.now_ms)
    assert clock.liveness.suspects == set()


def test_what_is_gone_and_fenced_is_forgotten() -> None:
    clock = Clockwork()
    for broker_id in range(1000):
        clock.liveness.heard(broker_id, broker_id, 7, clock.now_ms)
        clock.liveness.disconnected(broker_id, clock.now_ms)
    clock.tick()
    assert not clock.liveness._sessions
    assert not clock.liveness._connections


@pytest.mark.parametrize("seed", range(20))
def test_at_random_nobody_alive_is_fenced_and_everybody_dead_is(seed: int) -> None:
    """Brokers live, die and come back; who is up for longer than the grace is left alone."""
    rng = random.Random(seed)
    clock = Clockwork()
    connections: dict[int, tuple[int, int]] = {}
    epoch = 0
    for _ in range(200):
        broker_id = rng.randrange(5)
        alive = [number for number, (who, _) in connections.items() if who == broker_id]
        if alive:
            del connections[alive[0]]
            clock.liveness.disconnected(alive[0], clock.now_ms)
        else:
            epoch += 1
            connections[epoch] = broker_id, epoch
            clock.liveness.heard(epoch, broker_id, epoch, clock.now_ms)
            clock.unfenced[broker_id] = epoch
        clock.run(rng.choice([1, 50, GRACE_MS, 3_000]), connections)
        assert all(fencing.broker_epoch not in connections for _, fencing in clock.fenced)
    clock.run(GRACE_MS, connections)
    assert clock.unfenced == dict(connections.values())


def test_who_goes_before_it_is_known_to_be_let_in_is_suspected_from_then_on() -> None:
    """It was unfenced since the last tick."""
    clock = Clockwork(leads=False)
    clock.liveness.heard(1, 1, 7, clock.now_ms)
    clock.tick()
    clock.unfenced = {1: 7}
    clock.liveness.disconnected(1, clock.now_ms)
    clock.run(2 * SUSPICION_MS)
    assert clock.liveness.suspects == {1}
    clock.liveness.heard(2, 1, 7, clock.now_ms)
    assert clock.liveness.suspects == set()
