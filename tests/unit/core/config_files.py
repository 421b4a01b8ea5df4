"""A broker's settings as its file has them, and what is said about mistakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kraftpy.core.config import BrokerConfig, ConfigError


def broker(**properties: str) -> BrokerConfig:
    """A configuration from keyword arguments, underscores for dots."""
    return BrokerConfig.from_properties({k.replace("_", "."): v for k, v in properties.items()})


def error_of(function: Callable[..., Any], *arguments: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        function(*arguments)
    return caught.value
