"""What clients may not do to the brokers' own topics (`__consumer_offsets`, `__transaction_state`,
`__share_group_state`).

Their records are what groups and transactions consist of, so whoever deletes them, or has them
deleted by another cleanup.policy, loses every committed offset. Rules:

* A client doesn't create, grow or delete them, nor delete or write their records:
  INVALID_TOPIC_EXCEPTION with a sentence. Brokers create them when somebody first needs them.
* Their cleanup.policy stays `compact`: INVALID_CONFIG. That of share groups' state stays `delete`,
  with retention off: its head is cut off by who knows what is needed of it. All else that can be
  set is the operator's.
* An operator can delete one on purpose: `extensions.FORCE_INTERNAL_TAG` in DeleteTopics, which no
  stock client sends.

Requests are judged here, before they are proposed: what is committed is carried out.
"""

from __future__ import annotations

from kraftpy.core.config.kinds import split_list
from kraftpy.core.metadata import ResourceType
from kraftpy.core.metadata.commands import OP_APPEND, OP_SET, OP_SUBTRACT, ConfigChange
from kraftpy.core.metadata.records import INTERNAL_TOPICS, SHARE_STATE_TOPIC
from kraftpy.protocol.errors import ErrorCode

Refusal = tuple[ErrorCode, str]

_POLICY_KEY = "cleanup.policy"
_POLICY = {"compact"}
_STATE_CONFIGS = {_POLICY_KEY: "delete", "retention.ms": "-1", "retention.bytes": "-1"}


def refuse_creation(name: str) -> Refusal | None:
    """A client's topic would have a client's settings, and its records would go with time."""
    return _refusal(name, "which create it when it is first needed")


def refuse_deletion(name: str) -> Refusal | None:
    """All committed offsets would go with it."""
    return _refusal(
        name,
        "and what groups and transactions have committed would be gone with it: if you mean that, "
        f"`kraftpy topic delete --force-internal {name}`",
    )


def refuse_growth(name: str) -> Refusal | None:
    """More partitions would move every group and transaction to another partition."""
    return _refusal(name, "and its number of partitions can't change")


def refuse_deletion_of_records(name: str) -> Refusal | None:
    """The broker's own compaction knows which of them count."""
    return _refusal(name, "and only they delete its records")


def refuse_configs(change: ConfigChange) -> Refusal | None:
    """Nothing may make the topic lose what is the newest of a key."""
    if change.type != ResourceType.TOPIC or change.name not in INTERNAL_TOPICS:
        return None
    if change.name == SHARE_STATE_TOPIC:
        return _refuse_state_configs(change)
    if change.ops is None:
        stays = _parts(change.configs.get(_POLICY_KEY)) == _POLICY
    else:
        ops = [(op, value) for key, op, value in change.ops if key == _POLICY_KEY]
        stays = all(_leaves_policy(op, value) for op, value in ops)
    if stays:
        return None
    return (
        ErrorCode.INVALID_CONFIG,
        f"{_POLICY_KEY} of {change.name} has to stay compact: with any other one what groups and "
        "transactions have committed would be lost",
    )


def _refuse_state_configs(change: ConfigChange) -> Refusal | None:
    for key, value in _STATE_CONFIGS.items():
        if change.ops is None:
            stays = change.configs.get(key) == value
        else:
            ops = [(op, set_to) for named, op, set_to in change.ops if named == key]
            stays = all(op == OP_SET and set_to == value for op, set_to in ops)
        if not stays:
            return (
                ErrorCode.INVALID_CONFIG,
                f"{key} of {change.name} has to stay {value}: with any other one what share groups "
                "have done would be lost",
            )
    return None


def _leaves_policy(op: int, value: str | None) -> bool:
    parts = _parts(value)
    if op == OP_SET:
        return parts == _POLICY
    if op == OP_APPEND:
        return parts <= _POLICY
    return op == OP_SUBTRACT and not parts & _POLICY


def _parts(value: str | None) -> set[str]:
    return set(split_list(value or ""))


def _refusal(name: str, why: str) -> Refusal | None:
    if name not in INTERNAL_TOPICS:
        return None
    return ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} belongs to the brokers, {why}"
