"""What holds for all tests."""

from hypothesis import settings

# An example that takes long shows that the machine is busy, and no fault.
settings.register_profile("without a deadline", settings.default, deadline=None)
settings.load_profile("without a deadline")
