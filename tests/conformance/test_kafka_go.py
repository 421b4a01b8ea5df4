"""kafka-go: what an application on that client does with topics, records and groups."""

from __future__ import annotations

import json
import subprocess
import uuid

from tests.conformance.foreign import go_program

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PER_CODEC = 50


def test_records_of_each_codec_reach_a_group_and_stay_committed(bootstrap: str) -> None:
    name = f"kafka-go-{uuid.uuid4().hex[:8]}"
    command = [go_program("kafkago"), bootstrap, name, name]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=90, check=True, text=True)
    said = json.loads(done.stdout)
    assert set(said["first"]) == {f"{codec} {n}" for codec in CODECS for n in range(PER_CODEC)}
    assert said["second"] == {"last": 1}  # and nothing of what was committed before
    assert said["committed"] == len(CODECS) * PER_CODEC + 1
