"""What a proposal's end is called in Kafka's terms."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kraftpy.core.metadata import MetadataState
from kraftpy.core.metadata.commands import Barrier
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.quorum.client import ControllerUnavailable, ProposalTimeout
from kraftpy.quorum.mutations import Charge
from kraftpy.quorum.port import CommandResult
from kraftpy.server.cluster.proposals import Proposals


class Client:
    """Fails as the test says, when it is asked or when it is waited for."""

    def __init__(self, asked: Exception | None, waited: Exception | None) -> None:
        self._asked, self._waited = asked, waited

    async def propose(
        self, command: dict[str, Any], timeout_ms: int, charge: Charge | None
    ) -> tuple[int, CommandResult]:
        if self._asked is not None:
            raise self._asked
        return 7, CommandResult(ErrorCode.NONE, None, {})

    async def wait_applied(self, index: int, timeout_ms: int) -> None:
        if self._waited is not None:
            raise self._waited


@pytest.mark.parametrize(
    ("asked", "waited", "code"),
    [
        (ProposalTimeout("?"), None, ErrorCode.REQUEST_TIMED_OUT),
        (ControllerUnavailable("nobody"), None, ErrorCode.NOT_CONTROLLER),
        # It was carried out: a leader that took it for not proposed would forget a member of the
        # ISR (docs/rules.md, rule 7).
        (None, ControllerUnavailable("index 7 took longer"), ErrorCode.REQUEST_TIMED_OUT),
        (ValueError("large"), None, ErrorCode.INVALID_REQUEST),
    ],
)
def test_only_what_was_not_proposed_is_said_to_have_met_no_controller(
    asked: Exception | None, waited: Exception | None, code: ErrorCode
) -> None:
    proposals = Proposals(Client(asked, waited), MetadataState)  # type: ignore[arg-type]
    with pytest.raises(KafkaError) as failure:
        asyncio.run(proposals.propose(Barrier(), 100))
    assert failure.value.code is code
