"""What holds for all tests."""

import gc
import inspect
import subprocess
from collections.abc import Generator, Iterator

import pytest
from hypothesis import settings

from kraftpy import events
from kraftpy.testing import process
from tests import order, warm
from tests.loops import run

# An example that takes long shows that the machine is busy, and no fault.
settings.register_profile("without a deadline", settings.default, deadline=None)
settings.load_profile("without a deadline")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nine thousand tests stay from here until the end: nobody looks through them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Each worker begins elsewhere: what one compiles, the others find compiled."""
    report = yield
    if isinstance(collector, pytest.Directory):
        worker = getattr(collector.config, "workerinput", None)
        if worker is not None:
            number = int(worker["workerid"].removeprefix("gw"))
            report.result = order.rotated(report.result, number, worker["workercount"])
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order.sort(items)


@pytest.fixture(autouse=True, scope="session")
def _forked_starts() -> Iterator[None]:
    """What `kraftpy.testing` starts is forked from a process that has imported it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "popen", warm.popen)
        yield


@pytest.fixture(scope="module")
def started_from_scratch() -> Iterator[None]:
    """In this module nothing is forked: it looks at what a process of its own takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "popen", subprocess.Popen)
        yield


@pytest.fixture(autouse=True)
def _fresh_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test makes a process say doesn't keep it from saying that in the next."""
    monkeypatch.setattr(events, "_log", events.EventLog())


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """An `async def test_…` runs on a loop of its own."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    run(lambda: test(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
