"""Sessions: a command that is in the log more than once takes effect once."""

from __future__ import annotations

import random

import pytest

from kraftpy.protocol.errors import ErrorCode
from kraftpy.quorum import state as state_module
from kraftpy.quorum.packing import pack
from kraftpy.quorum.port import Applied, Entry
from kraftpy.quorum.state import MAX_OUTSTANDING, ReplicatedState, pack_envelope

from .standin import Values

ALICE, BOB = b"a" * 16, b"b" * 16


class Log:
    """Applies commands one after the other, and to a second state restored at every step."""

    def __init__(self) -> None:
        self.state = ReplicatedState(Values)

    def envelope(self, envelope: bytes) -> Applied:
        index = self.state.applied_index + 1
        restored = ReplicatedState.restore(
            Values, index - 1, self.state.pack_sessions(), self.state.pack_machine()
        )
        applied = self.state.apply(Entry(index, 1, envelope))
        assert restored.apply(Entry(index, 1, envelope)) == applied, "a snapshot lost something"
        assert restored.pack_sessions() == self.state.pack_sessions()
        return applied

    def add(
        self, value: object, client: bytes, sequence: int, lowest: int = 1, opened_at: int = 0
    ) -> Applied:
        return self.envelope(pack_envelope(client, sequence, lowest, opened_at, {"add": value}))

    @property
    def values(self) -> list[object]:
        machine = self.state.machine
        assert isinstance(machine, Values)
        return machine.values


def test_a_retry_answers_with_the_first_result() -> None:
    log = Log()
    first = log.add("x", ALICE, 1)
    log.add("y", BOB, 1)
    again = log.add("x", ALICE, 1)
    assert log.values == ["x", "y"]
    assert (first.fresh, again.fresh) == (True, False)
    assert again.result == first.result
    assert (again.effective_index, again.entry.index) == (1, 3)


def test_a_rejected_command_stays_rejected() -> None:
    log = Log()
    envelope = pack_envelope(ALICE, 1, 1, 0, {"fail": "no"})
    assert log.envelope(envelope).result.error is ErrorCode.INVALID_REQUEST
    assert log.envelope(envelope).result.message == "no"


def test_a_command_that_its_client_gave_up_has_no_effect_after_a_later_one() -> None:
    log = Log()
    log.add("later", ALICE, 2, lowest=2)
    late = log.add("given up", ALICE, 1, lowest=1)
    assert log.values == ["later"]
    assert not late.fresh
    assert late.result.error is ErrorCode.REQUEST_TIMED_OUT


def test_what_is_no_command_changes_nothing() -> None:
    log = Log()
    for junk in (
        b"\xc1",
        b"junk",
        pack([ALICE, 1, 1, 0]),
        pack([b"short", 1, 1, 0, {}]),
        b"\x91" * 9,
    ):
        applied = log.envelope(junk)
        assert not applied.fresh
        assert applied.result.error is ErrorCode.INVALID_REQUEST
    assert not log.envelope(b"").fresh
    assert log.values == []


def test_an_old_session_that_may_have_been_forgotten_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_module, "MAX_SESSIONS", 3)
    log = Log()
    log.add("x", ALICE, 1)
    for n in range(3):
        log.add(n, bytes([n]) * 16, 1)
    again = log.add("x", ALICE, 1)
    assert log.values == ["x", 0, 1, 2]
    assert again.result.value == {"session_expired": True}
    assert log.add("new", BOB, 1, opened_at=again.entry.index).fresh


def test_results_of_a_client_that_never_moves_on_are_bounded() -> None:
    state = ReplicatedState(Values)
    for n in range(1, MAX_OUTSTANDING + 51):
        state.apply(Entry(n, 1, pack_envelope(ALICE, n, 1, 0, {"add": n})))
    assert len(state._sessions[ALICE].results) == MAX_OUTSTANDING
    index = state.applied_index
    for n in range(1, MAX_OUTSTANDING + 51):
        assert not state.apply(Entry(index + n, 1, pack_envelope(ALICE, n, 1, 0, {"add": n}))).fresh


@pytest.mark.parametrize("seed", range(5))
def test_whatever_the_network_repeats_or_delays_nothing_is_applied_twice(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_module, "MAX_SESSIONS", 4)
    rng = random.Random(seed)
    log = Log()
    sent: list[bytes] = []
    opened = {}
    sequences: dict[bytes, int] = {}
    for n in range(300):
        if sent and rng.random() < 0.4:
            log.envelope(rng.choice(sent))
            continue
        client = bytes([rng.randrange(8)]) * 16
        if client not in opened or rng.random() < 0.05:  # a new life of that client
            client = rng.randbytes(16)
            opened[client] = log.state.applied_index
        sequence = sequences[client] = sequences.get(client, 0) + 1
        lowest = max(1, sequence - rng.randrange(4))
        sent.append(pack_envelope(client, sequence, lowest, opened[client], {"add": n}))
        if rng.random() < 0.9:
            log.envelope(sent[-1])
    assert len(log.values) == len(set(map(str, log.values)))
    assert len(log.values) > 100
