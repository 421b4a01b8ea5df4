"""How a run ends: whatever was promised has the whole SLA to arrive."""

from __future__ import annotations

import asyncio
import time

from kraftpy.probe.prober import ProbeOptions, Prober

SLA_S = 1.0
OPTIONS = ProbeOptions("127.0.0.1:1", "t", "g", None, interval_ms=100, sla_ms=int(1000 * SLA_S))


def test_what_is_acknowledged_late_is_not_lost_before_its_time_is_over() -> None:
    async def run() -> Prober:
        prober = Prober(OPTIONS)
        tracker = prober.tracker
        tracker.committed(1, 0.01)
        late = tracker.sent(0, 7, time.monotonic())
        tracker.sent(1, 7, time.monotonic())  # never acknowledged

        async def end() -> None:
            await prober._settle()
            tracker.give_up()

        ending = asyncio.create_task(end())
        await asyncio.sleep(1.5 * SLA_S)
        tracker.acknowledged(late, time.monotonic())
        await asyncio.sleep(0.75 * SLA_S)
        tracker.arrived(late, 100, time.monotonic())
        prober._news.set()
        await ending
        return prober

    tally = asyncio.run(run()).tracker.brokers[7]
    assert (tally.produced, tally.received, tally.failed, tally.lost) == (1, 1, 1, 0)
