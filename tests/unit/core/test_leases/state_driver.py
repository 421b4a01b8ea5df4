"""A share coordinator with its log in memory: the test decides when a write commits."""

from __future__ import annotations

from kraftpy.core.coordination import Effects, Loaded, Write
from kraftpy.core.leases.state import (
    ShareStateCodec,
    ShareStateConfig,
    ShareStateMachine,
    StateAnswer,
    StateWrite,
)
from kraftpy.core.leases.state_memory import ShareMemory
from kraftpy.core.leases.state_records import ShareKey, ShareRecord
from kraftpy.core.leases.terms import StateBatch
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.record_batch import stamp_batch
from kraftpy.protocol.records import split_batches

KEY = ShareKey("g", bytes(15) + b"t", 3)
COLD_MS = 300_000


class Coordinator:
    """`log` has what is committed; `pending` what was appended and isn't yet."""

    def __init__(self, updates_per_snapshot: int = 500, memory: ShareMemory | None = None) -> None:
        self.memory = memory or ShareMemory(1 << 30)
        self.config = ShareStateConfig(updates_per_snapshot, COLD_MS)
        self.codec = ShareStateCodec()
        self.machine = ShareStateMachine(self.config, self.memory)
        self.log = b""
        self.end_offset = 0
        self.pending: list[Write[ShareRecord]] = []
        self.answers: dict[str, StateAnswer] = {}
        self.now_ms = 0
        self._tokens = 0
        self.do(self.machine.finish_load(0))

    def do(self, effects: Effects[ShareRecord]) -> None:
        self.pending += effects.writes
        for token, answer in effects.replies:
            assert isinstance(token, str)
            assert isinstance(answer, StateAnswer)
            assert token not in self.answers
            self.answers[token] = answer

    def token(self) -> str:
        self._tokens += 1
        return str(self._tokens)

    # -- requests: each gives its token

    def initialize(self, state_epoch: int, start: int = 0, key: ShareKey = KEY) -> str:
        token = self.token()
        self.do(self.machine.initialize(token, key, state_epoch, start, self.now_ms))
        return token

    def write(
        self,
        *batches: tuple[int, int, int, int],
        start: int = 0,
        finished: int = 0,
        epochs: tuple[int, int] = (0, 0),
        key: ShareKey = KEY,
    ) -> str:
        token = self.token()
        write = StateWrite(*epochs, start, finished, [StateBatch(*each) for each in batches])
        self.do(self.machine.write(token, key, write, self.now_ms))
        return token

    def read(self, leader_epoch: int, key: ShareKey = KEY) -> str:
        token = self.token()
        self.do(self.machine.read(token, key, leader_epoch, self.now_ms))
        return token

    def delete(self, key: ShareKey = KEY) -> str:
        token = self.token()
        self.do(self.machine.delete(token, key, self.now_ms))
        return token

    # -- what becomes of writes

    def commit(self) -> list[ShareRecord]:
        """The oldest write that was appended; its records."""
        write = self.pending.pop(0)
        batch = bytearray(self.codec.encode(write, self.now_ms))
        stamp_batch(batch, 0, self.end_offset, 0)
        write.offset = self.end_offset
        self.log += bytes(batch)
        self.end_offset += len(write.records)
        self.do(self.machine.committed(write, self.now_ms))
        return list(write.records)

    def fail(self, error: ErrorCode = ErrorCode.NOT_ENOUGH_REPLICAS) -> None:
        self.do(self.machine.failed(self.pending.pop(0), error, self.now_ms))

    def heard(self, token: str) -> StateAnswer:
        """What a request is told, with all written that it waits for."""
        while token not in self.answers:
            self.commit()
        return self.answers.pop(token)

    def error(self, token: str) -> ErrorCode:
        return self.heard(token).error

    def batches(self, leader_epoch: int = 0) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(each) for each in self.heard(self.read(leader_epoch)).batches)

    def reloaded(self, from_offset: int = 0) -> Coordinator:
        """Another coordinator of the same log, or of what is left of it."""
        other = Coordinator(self.config.updates_per_snapshot)
        other.machine = ShareStateMachine(self.config, other.memory)
        loaded = Loaded()
        kept = [
            self.log[position : position + header.size_bytes]
            for position, header in split_batches(self.log)
            if header.base_offset >= from_offset
        ]
        self.codec.replay(b"".join(kept), other.machine, loaded)
        assert not loaded.skipped, loaded
        other.log, other.end_offset = self.log, self.end_offset
        other.do(other.machine.finish_load(0))
        return other
