"""An `async def test_…` is run, and fails for what a test fails for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import uvloop

from tests.loops import run


@pytest.mark.parametrize("given", ["a parameter"])
async def test_it_runs_on_uvloop_and_gets_its_fixtures(given: str, tmp_path: Path) -> None:
    assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
    assert given == "a parameter"
    assert tmp_path


@pytest.mark.xfail(raises=ZeroDivisionError, strict=True)
async def test_it_fails_for_what_it_raises() -> None:
    await asyncio.sleep(0)
    raise ZeroDivisionError


@pytest.mark.xfail(raises=AssertionError, strict=True)
async def test_it_fails_for_what_a_callback_raises() -> None:
    asyncio.get_running_loop().call_soon(lambda: 1 / 0)
    await asyncio.sleep(0.001)


def test_it_has_a_deadline() -> None:
    with pytest.raises(TimeoutError):
        run(lambda: asyncio.sleep(60), timeout_s=0.001)
