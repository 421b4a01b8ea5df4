"""The programs of docs/client.md run as they stand there, but for the address."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from kraftpy.testing import Broker

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
DONE = "letters 0 done"


def test_the_programs_of_the_page(kraftpy: Broker) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    printed = []
    for block in blocks:
        assert "127.0.0.1:9092" in block
        program = block.replace("127.0.0.1:9092", kraftpy.bootstrap)
        command = [sys.executable, "-W", "error", "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout.splitlines())
    sending, blocking, interceptor, streams, sharing, administration = printed
    assert sending[0] == "orders-0 at 3"
    assert sending[1:] == [
        *(f"table 4 b'coffee {number}'" for number in range(3)),
        "table 4 b'the bill'",
    ]
    assert blocking == ["orders-0 at 4", "[5, 6]"]
    (counted,) = interceptor
    assert re.fullmatch(r"Counter\({'bytes': \d+, 'attempts': 1, 'written': 1}\)", counted)
    assert streams[:3] == ["0 4 b'coffee'", "0 5 b'tea'", "0 6 b'milk'"]
    assert sharing == ["to Ann 1", "torn 1", "nobody home 1", "to Ben 1", "nobody home 2", DONE]
    assert "retention.ms 86400000" in administration
    assert "('payments', 0) 0 begun" in administration
    assert "audit Empty" in administration
    assert administration[-1] == "[1]"
