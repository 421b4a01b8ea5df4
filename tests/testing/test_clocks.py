"""Clocks that can be set: how soon a process shows it."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from kraftpy.testing import clocks
from kraftpy.testing.clocks import Clocks

STEP_S = 1000.0
MARGIN_S = 0.5
# Says when its clock has been set: what the time that goes on as ever is then, and for how long it
# has stood still since it last said so.
PROGRAM = """
import select, time
shown = time.time()
print("now", flush=True)
still, turned = 0.0, time.monotonic()
while True:
    now = time.monotonic()
    if now - turned > 0.1:
        still += now - turned
    turned = now
    if time.time() > shown + 500:
        shown = time.time()
        print(time.monotonic(), still, flush=True)
        still = 0.0
    select.select([], [], [], 0.005)
"""
# One thread keeps the interpreter to itself; says what time it takes another one to wait for it.
WAITING = """
import threading, time
worker = threading.Thread(target=sum, args=[range(20_000_000)])
began = time.thread_time()
worker.start()
while worker.is_alive():
    worker.join(0.01)
print(time.thread_time() - began, time.process_time())
"""


@pytest.mark.parametrize("offset_s", [0.0, STEP_S])
def test_a_thread_that_waits_for_another_one_takes_no_core(offset_s: float) -> None:
    if missing := clocks.missing():
        pytest.skip(missing)
    made = Clocks()
    environment = {**os.environ, **made.environment}
    made._write("own", offset_s)
    command = [sys.executable, "-c", WAITING]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, check=True)
    finally:
        made.close()
    waited_s, all_s = map(float, done.stdout.split())
    assert waited_s < all_s / 5


def test_a_clock_shows_within_its_time_what_it_was_set_to() -> None:
    if missing := clocks.missing():
        pytest.skip(missing)
    made = Clocks()
    environment = {**os.environ, **made.environment}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            # Each but the first is set right after the file was read: it takes as long as it can.
            for times in range(1, 4):
                set_at_s = time.monotonic()
                made._write("own", times * STEP_S)
                shown_at_s, still_s = map(float, process.stdout.readline().split())
                assert shown_at_s - set_at_s - still_s < clocks.NOTICED_S + MARGIN_S
        finally:
            process.kill()
            made.close()
