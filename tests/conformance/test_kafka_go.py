"""kafka-go: what an application on that client does with topics, records and groups."""

from __future__ import annotations

import uuid

from tests.conformance.foreign import said_by

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PER_CODEC = 50


def test_records_of_each_codec_reach_a_group_and_stay_committed(bootstrap: str) -> None:
    name = f"kafka-go-{uuid.uuid4().hex[:8]}"
    said = said_by("kafkago", bootstrap, name, name, timeout_s=90)
    assert set(said["first"]) == {f"{codec} {n}" for codec in CODECS for n in range(PER_CODEC)}
    assert said["second"] == {"last": 1}  # and nothing of what was committed before
    assert said["committed"] == len(CODECS) * PER_CODEC + 1
