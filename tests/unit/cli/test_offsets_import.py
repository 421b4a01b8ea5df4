"""What `kraftpy offsets import` says of commits that fail as a whole."""

from __future__ import annotations

import asyncio
from typing import Any

from kraftpy.cli import offsets
from kraftpy.protocol.errors import ErrorCode, KafkaError


class Admin:
    """Every commit fails as a whole."""

    async def commit(self, *arguments: object) -> dict[Any, KafkaError]:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)


def test_one_group_that_cannot_be_committed_does_not_end_the_import() -> None:
    planned = offsets._Row("g", "t", "0", None, 5, offsets.PLANNED)
    kept = offsets._Row("g", "t", "1", 7, 5, offsets.KEPT)
    admin: Any = Admin()
    rows = asyncio.run(offsets._commit(admin, "g", [planned, kept]))
    assert [row.status for row in rows] == [offsets.SKIPPED, offsets.KEPT]
    assert ErrorCode.COORDINATOR_NOT_AVAILABLE.message in rows[0].reason
