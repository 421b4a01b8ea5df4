"""What `kraftpy.client` offers by its own name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kraftpy import client


def test_each_name_is_found_and_all_of_them_are_listed() -> None:
    assert set(client._HOMES) == set(client.__all__) <= set(dir(client))
    for name in client.__all__:
        assert getattr(client, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = client.Nothing


def test_a_part_is_loaded_by_whoever_asks_for_it() -> None:
    code = (
        "import sys; from kraftpy.client import KafkaError; "
        "print(*(n for n in sys.modules if n.startswith('kraftpy.client.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "\n"
