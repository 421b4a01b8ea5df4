"""What holds for all tests."""

import pytest
from hypothesis import settings

from kraftpy import events

# An example that takes long shows that the machine is busy, and no fault.
settings.register_profile("without a deadline", settings.default, deadline=None)
settings.load_profile("without a deadline")


@pytest.fixture(autouse=True)
def _fresh_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test makes a process say doesn't keep it from saying that in the next."""
    monkeypatch.setattr(events, "_log", events.EventLog())
