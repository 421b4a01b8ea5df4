"""Removes delegation tokens that are over: a duty of the controller that leads.

Which they are, the command decides where it is applied, by the time that it names
(`token_commands`): one that is renewed in between stays.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from kraftpy.core.metadata.commands import RemoveExpiredTokens

if TYPE_CHECKING:
    from kraftpy.core.metadata import MetadataState
    from kraftpy.quorum.port import Applied

logger = logging.getLogger(__name__)


class TokenExpiry:
    """Looks every `interval_ms`, and when it begins."""

    def __init__(
        self,
        interval_ms: int,
        metadata: Callable[[], MetadataState],
        propose: Callable[[RemoveExpiredTokens], asyncio.Future[Applied]],
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`now_s` is the wall clock."""
        self._interval_s = interval_ms / 1000
        self._metadata = metadata
        self._propose = propose
        self._now_s = now_s

    async def run(self) -> None:
        """Goes on until it's cancelled."""
        while True:
            now_ms = int(self._now_s() * 1000)
            over = sum(each.expired(now_ms) for each in self._metadata().tokens.values())
            if over:
                logger.info("%d delegation tokens are over", over)
                await asyncio.wait([self._propose(RemoveExpiredTokens(now_ms))])
            await asyncio.sleep(self._interval_s)
