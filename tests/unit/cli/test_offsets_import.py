"""What `kraftpy offsets import` says of commits that fail as a whole."""

from __future__ import annotations

import asyncio
from typing import Any

from kraftpy.cli.offset_rows import KEPT, PLANNED, SKIPPED, Row, commit
from kraftpy.client.offsets import OffsetAndMetadata
from kraftpy.protocol.errors import ErrorCode, KafkaError


class Admin:
    """Every commit fails as a whole."""

    async def commit(self, *arguments: object) -> dict[Any, KafkaError]:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)


def test_what_is_imported_keeps_the_text_that_was_beside_the_old_offset() -> None:
    taken: list[Any] = []

    class Taking:
        async def commit(self, group: str, *arguments: object) -> dict[Any, KafkaError]:
            taken.append(arguments)
            return {}

    planned = Row("g", "t", "0", 3, 5, PLANNED, metadata="here")
    admin: Any = Taking()
    asyncio.run(commit(admin, "g", [planned]))
    assert taken == [({("t", 0): OffsetAndMetadata(5, "here")}, {("t", 0): 3})]


def test_one_group_that_cannot_be_committed_does_not_end_the_import() -> None:
    planned = Row("g", "t", "0", None, 5, PLANNED)
    kept = Row("g", "t", "1", 7, 5, KEPT)
    admin: Any = Admin()
    rows = asyncio.run(commit(admin, "g", [planned, kept]))
    assert [row.status for row in rows] == [SKIPPED, KEPT]
    assert ErrorCode.COORDINATOR_NOT_AVAILABLE.message in rows[0].reason
