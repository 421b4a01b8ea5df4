"""The programs of docs/client.md run as they stand there, but for the address.

On a broker of their own: README's program writes to the topic whose offsets they print, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from kraftpy.testing import Broker

from .pages import printed_by, programs_of

DONE = "letters 0 done"


def test_the_programs_of_the_page(kraftpy_factory: Callable[..., Broker]) -> None:
    address = kraftpy_factory().bootstrap
    printed = [printed_by(program, address) for program in programs_of("client.md")]
    sending, blocking, interceptor, streams, sharing = printed
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
