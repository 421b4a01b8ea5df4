"""Trap 16: a broker that lags behind decides anew, by the ACLs that there are by then."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kraftpy.core.metadata import LEVEL, RIGHTS_CHANGED, MetadataState
from kraftpy.core.metadata.commands import DeleteTopics, OldTopic, encode
from kraftpy.core.security.acls import Operation, Resource
from kraftpy.core.security.authorizer import Authorizer, View
from kraftpy.core.security.principals import ANONYMOUS
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.quorum.port import CommandResult
from kraftpy.server.handlers.rights import controller_of, note_need

ACL = [2, "t", 3, "User:ANONYMOUS", "*", int(Operation.DELETE), 3]
OTHER = [2, "u", 3, "User:ANONYMOUS", "*", int(Operation.DELETE), 3]
NEED = Operation.DELETE, Resource.TOPIC, "t"
COMMAND = DeleteTopics((OldTopic("t"),))


class Audit:
    def __init__(self) -> None:
        self.denials: list[Any] = []

    def denied(self, *denial: Any) -> None:
        self.denials.append(denial[1:])


class Lagging:
    """A broker whose metadata gets the commands of `later` only when something is proposed."""

    def __init__(self, *later: dict[str, Any]) -> None:
        self.metadata = MetadataState()
        self.later = list(later)
        self.proposed: list[dict[str, Any]] = []
        self.controller = self
        self.audit = Audit()
        self._apply({"type": "raise_level", "level": LEVEL})
        self._apply({"type": "create_acls", "acls": [ACL]})
        self.authorizer = Authorizer(self.metadata.acls)
        view = self.authorizer.view(ANONYMOUS, "127.0.0.1")
        self.ctx: Any = SimpleNamespace(session=SimpleNamespace(view=view))
        note_need(self.ctx, NEED)

    def _apply(self, command: dict[str, Any]) -> CommandResult:
        result = self.metadata.apply(self.metadata.applied_index + 1, command)
        return CommandResult(result.error, result.message, result.value)

    async def propose(self, command: Any, timeout_ms: int) -> tuple[int, CommandResult]:
        while self.later:
            self._apply(self.later.pop(0))
        self.proposed.append(encode(command))
        return self.metadata.applied_index, self._apply(self.proposed[-1])


async def test_what_is_allowed_names_the_version_of_the_acls() -> None:
    broker: Any = Lagging()
    _, result = await controller_of(broker, broker.ctx).propose(COMMAND, 1000)
    assert result.error is ErrorCode.NONE
    assert broker.proposed[0]["allowed_under"] == broker.metadata.acls.version


async def test_under_other_acls_that_allow_it_it_is_proposed_again() -> None:
    broker: Any = Lagging({"type": "create_acls", "acls": [OTHER]})
    _, result = await controller_of(broker, broker.ctx).propose(COMMAND, 1000)
    assert result.error is ErrorCode.NONE
    first, second = (each["allowed_under"] for each in broker.proposed)
    assert first < second == broker.metadata.acls.version


async def test_a_right_that_is_gone_is_no_right() -> None:
    broker: Any = Lagging({"type": "delete_acls", "filters": [ACL]})
    with pytest.raises(KafkaError) as raised:
        await controller_of(broker, broker.ctx).propose(COMMAND, 1000)
    assert raised.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert len(broker.proposed) == 1
    assert broker.audit.denials == [NEED]


async def test_all_needs_are_decided_once_for_each_version_of_the_acls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request of ten thousand topics may become as many commands."""
    broker: Any = Lagging()
    decided: list[str] = []
    may = View.may

    def decide(self: View, operation: int, resource_type: int, name: str) -> bool:
        decided.append(name)
        return may(self, operation, resource_type, name)

    monkeypatch.setattr(View, "may", decide)
    controller = controller_of(broker, broker.ctx)
    for _ in range(3):
        await controller.propose(COMMAND, 1000)
    assert decided == ["t"]
    note_need(broker.ctx, (Operation.READ, Resource.TOPIC, "u"))
    with pytest.raises(KafkaError):
        await controller.propose(COMMAND, 1000)
    assert decided == ["t", "t", "u"]
    del broker.ctx.needs[Operation.READ, Resource.TOPIC, "u"]
    broker.later.append({"type": "create_acls", "acls": [OTHER]})
    await controller.propose(COMMAND, 1000)
    assert decided == ["t", "t", "u", "t"]


async def test_acls_that_change_all_the_time_are_told() -> None:
    broker: Any = Lagging()

    async def propose(command: Any, timeout_ms: int) -> tuple[int, CommandResult]:
        return 1, CommandResult(RIGHTS_CHANGED, "changed", {})

    broker.controller = SimpleNamespace(propose=propose)
    with pytest.raises(KafkaError) as raised:
        await controller_of(broker, broker.ctx).propose(COMMAND, 1000)
    assert raised.value.code is ErrorCode.REQUEST_TIMED_OUT


async def test_without_an_authorizer_commands_name_nothing() -> None:
    broker: Any = Lagging()
    ctx: Any = SimpleNamespace(session=SimpleNamespace(view=None))
    assert controller_of(broker, ctx) is broker.controller
