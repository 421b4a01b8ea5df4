"""The exporter's channel: answers in slices, whoever is slow, silent or gone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator

import pytest

from kraftpy.metrics import channel as module
from kraftpy.metrics.channel import Frame, Responder, Source, SourceUnavailable, channel


def run_asking(answers: dict[str, object], *whats: str, timeout_s: float = 5.0) -> list[object]:
    """What the exporter's side gets for each question, an exception as such."""

    async def serve() -> list[object]:
        loop = asyncio.get_running_loop()
        ours, theirs = channel()
        responder = Responder(loop, ours, answers, lambda: None)  # type: ignore[arg-type]
        source = Source("broker", 1, theirs)

        def ask() -> list[object]:
            found: list[object] = []
            for what in whats:
                try:
                    found.append(source.ask(what, timeout_s))
                except SourceUnavailable as error:
                    found.append(error)
            return found

        try:
            return await asyncio.to_thread(ask)
        finally:
            responder.close()
            theirs.close()

    return asyncio.run(serve())


def test_frames_arrive_in_order_and_complete() -> None:
    def metrics() -> Iterator[Frame]:
        for number in range(5000):
            yield ["samples", [["name", [], number]]]

    (frames,) = run_asking({"metrics": metrics}, "metrics")
    assert [frame[1][0][2] for frame in frames] == list(range(5000))  # type: ignore[attr-defined]


def test_no_slice_is_long_though_the_answer_is() -> None:
    """While an answer of many slices is made, the loop comes round to others again and again."""
    waits: list[float] = []

    def metrics() -> Iterator[Frame]:
        for _ in range(200):
            until = time.perf_counter() + 0.0001
            while time.perf_counter() < until:
                pass
            yield ["samples", []]

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = channel()
        responder = Responder(loop, ours, {"metrics": metrics}, lambda: None)
        asking = asyncio.create_task(asyncio.to_thread(Source("b", 1, theirs).ask, "metrics"))
        worked: list[int] = []
        original = responder._next

        def counting() -> bytes:
            worked[-1] += 1
            return original()

        responder._next = counting  # type: ignore[method-assign]
        while not asking.done():
            worked.append(0)
            await asyncio.sleep(0)
        waits.extend(worked)
        assert len(await asking) == 200
        responder.close()
        theirs.close()

    asyncio.run(serve())
    # A slice of 0.5 ms has room for five such frames, and begins one more at most.
    assert max(waits) <= 1 + round(module.SLICE_S / 0.0001)


def test_the_rest_of_a_late_answer_is_not_taken_for_the_next() -> None:
    calls = 0

    def metrics() -> Iterator[Frame]:
        nonlocal calls
        calls += 1
        yield ["samples", calls]
        if calls == 1:
            while calls == 1:
                yield ["samples", "endless"]

    late, answer = run_asking({"metrics": metrics}, "metrics", "metrics", timeout_s=0.2)
    assert isinstance(late, SourceUnavailable)
    assert answer == [["samples", 2]]


def test_a_process_that_is_gone_is_reported() -> None:
    ours, theirs = channel()
    ours.close()
    source = Source("broker", 1, theirs)
    for _ in range(2):
        with pytest.raises(SourceUnavailable, match="has ended"):
            source.ask("metrics", 0.2)
        assert source.ended
    theirs.close()


def test_a_process_that_hangs_has_told_that_it_started() -> None:
    """It was told before; a silent one that has told nothing may still be starting."""

    async def serve() -> list[bool]:
        ours, theirs = channel()
        responder = Responder(asyncio.get_running_loop(), ours, {}, lambda: None)
        first = Source("broker", 1, theirs)
        seen = []
        for told in (False, True, True):
            if told and not seen[-1]:
                responder.tell_started()
            with pytest.raises(SourceUnavailable):
                first.ask("health", 0.05)  # on this loop: nobody answers
            seen.append(first.started)
        assert not first.ended
        responder.close()
        theirs.close()
        return seen

    assert asyncio.run(serve()) == [False, True, True]


def test_an_exporter_that_takes_anothers_place_knows_that_the_process_has_started() -> None:
    """Each is a fork of the node, and the process tells but once."""
    loop = asyncio.new_event_loop()
    ours, theirs = channel()
    responder = Responder(loop, ours, {}, lambda: None)
    source = Source("broker", 1, theirs)
    responder.tell_started()
    for _ in range(2):
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(SourceUnavailable):
                source.ask("health", 0.05)
            os._exit(int(source.started))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    responder.close()
    theirs.close()
    loop.close()


def test_the_end_of_the_exporter_is_told_once_and_ends_nothing_else() -> None:
    async def serve() -> int:
        told: list[None] = []
        loop = asyncio.get_running_loop()
        ours, theirs = channel()
        Responder(loop, ours, {}, lambda: told.append(None))
        theirs.close()
        deadline = loop.time() + 5
        while not told and loop.time() < deadline:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        return len(told)

    assert asyncio.run(serve()) == 1
