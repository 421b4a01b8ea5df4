"""Where two logs part and what is cut: the cases of scenarios/divergence.txt.

A record is written as the leader epoch that wrote it. A case has the leader's log, the epoch that
it leads, the follower's log, and what comes of the follower's fetches until the logs agree.
"""

from __future__ import annotations

from kraftpy.core.metadata import PartitionState
from kraftpy.core.replication import Following, divergence
from kraftpy.protocol.errors import KafkaError
from tests.simulation.log import Batch, SimLog, header_of, stamped

ROUNDS_MAX = 10


def played(script: str) -> str:
    """The script with what really comes of its cases."""
    lines = []
    leader = SimLog()
    for line in script.splitlines():
        if line.startswith("    "):
            continue
        lines.append(line)
        words = line.split()
        if words[:1] == ["leader"]:
            leader = _log(words[1 : words.index("leads")])
            rest = words[words.index("leads") + 1 :]
            leader.leader_epochs.assign(int(rest[0]), leader.log_end_offset)
            if "starts" in rest:
                leader.advance_log_start(int(rest[rest.index("starts") + 1]))
        elif words[:1] == ["follower"]:
            lines += ["    " + said for said in _rounds(leader, _follower(words[1:]))]
    return "\n".join(lines) + "\n"


def _log(epochs: list[str]) -> SimLog:
    log = SimLog()
    for epoch in epochs:
        header = stamped(header_of(1), log.log_end_offset, int(epoch))
        log.append(Batch(header, (log.log_end_offset,)))
    return log


def _follower(words: list[str]) -> SimLog:
    """With `led 5` it has begun to lead epoch 5 and written nothing."""
    if "led" not in words:
        return _log(words)
    log = _log(words[: words.index("led")])
    log.leader_epochs.assign(int(words[-1]), log.log_end_offset)
    return log


def _rounds(leader: SimLog, log: SimLog) -> list[str]:
    epoch = leader.leader_epochs.latest
    state = PartitionState(1, epoch, 0, (1, 2), (1,), (bytes(16), bytes(16)))
    role = Following(state, log, 0)
    said = []
    for _ in range(ROUNDS_MAX):
        offset, last_epoch = role.fetch_position(log)
        asked = f"fetch {offset} after epoch {last_epoch}: "
        try:
            parts_at = divergence(leader, offset, last_epoch)
        except KafkaError as error:
            cut = role.restart(log, leader.log_start_offset, leader.log_end_offset)
            asked += error.code.name
        else:
            if parts_at is None:
                return [*said, asked + "the logs agree", "keeps " + _records(log)]
            cut = role.truncation(log, *parts_at, leader.log_start_offset)
            asked += f"epoch {parts_at[0]} ends at {parts_at[1]}"
        assert cut is not None, asked
        if cut.fully:
            log.truncate_fully_and_start_at(cut.offset)
            said.append(f"{asked}, starts anew at {cut.offset}")
        else:
            log.truncate_to(cut.offset)
            said.append(f"{asked}, cut to {cut.offset}")
    raise AssertionError(f"no end after {said}")


def _records(log: SimLog) -> str:
    return " ".join(str(batch.epoch) for batch in log.batches) or "nothing"
