"""The Java consumer subscribes by a regular expression that the coordinator evaluates (RE2)."""

from __future__ import annotations

import subprocess

from tests.clients.driver import Driver, Message
from tests.conformance.foreign import java_program


def consume(bootstrap: str, group: str, pattern: str, records: int) -> list[str]:
    """What the program says."""
    arguments = [bootstrap, group, pattern, str(records), "an-instance"]
    done = subprocess.run(
        [*java_program("PatternConsumer"), *arguments],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # The client's warnings go to the same place.
    return [line for line in done.stdout.splitlines() if not line[:1].isdigit()]


def test_topics_are_found_by_the_coordinator(bootstrap: str, reference: Driver, topic: str) -> None:
    for name in (f"{topic}-eu", f"{topic}-us", f"other-{topic}"):
        reference.create_topic(name, 2)
        reference.produce(name, [Message(b"%d" % n, partition=n % 2) for n in range(4)])
    said = consume(bootstrap, f"g-{topic}", f"{topic}-(eu|us)", 8)
    wanted = [f"{topic}-{where} {n}" for where in ("eu", "us") for n in range(4)]
    assert said == [*wanted, "left"]
    assert [reference.committed(f"{topic}-eu", index, f"g-{topic}") for index in (0, 1)] == [2, 2]
    # A static member comes back to the end of what it read.
    reference.produce(f"{topic}-us", [Message(b"more")])
    assert consume(bootstrap, f"g-{topic}", f"{topic}-.*", 1) == [f"{topic}-us more", "left"]


def test_what_re2_does_not_know_is_refused(bootstrap: str, topic: str) -> None:
    assert consume(bootstrap, f"g-{topic}", "(?=look-ahead)", 1) == ["refused"]
