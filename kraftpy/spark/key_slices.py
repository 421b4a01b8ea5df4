"""Reading a part of a partition's keys: a slice of their hash (`kraftpy.protocol.key_hash`).

* A record without a key is in the slice of its offset's hash.
* Brokers that serve slices are asked for them, and needn't be believed: `hashes_of_keys` says of
  which slice each record is that came. Others send everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kraftpy.protocol.crc import crc32c
from kraftpy.protocol.extensions import COOPERATIVE_FEATURE, KEY_RANGES_TAG, encode_ranges
from kraftpy.protocol.key_hash import GOLDEN_RATIO
from kraftpy.spark.varints import Bytes, Numbers

if TYPE_CHECKING:
    from kraftpy.client.cluster import Cluster


def hashes_of_keys(
    data: Bytes, begins: Numbers, ends: Numbers, nulls: Any, offsets: Numbers
) -> Numbers:
    """`key_hash` of the records at these offsets, whose keys are between `begins` and `ends`."""
    raw = memoryview(data)
    edges = zip(begins.tolist(), ends.tolist(), strict=True)
    checksums = np.fromiter((crc32c(raw[begin:end]) for begin, end in edges), np.uint64, len(ends))
    spread = np.where(nulls, offsets.astype(np.uint64), checksums)
    # The product keeps its lower 64 bits, as it has to.
    hashes: Numbers = (spread * np.uint64(GOLDEN_RATIO) >> np.uint64(1)).astype(np.int64)
    return hashes


def key_ranges(hashes: tuple[int, int], cluster: Cluster) -> dict[int, bytes] | None:
    """The tagged field that asks a broker for these alone, if the cluster serves slices."""
    if not cluster.feature(COOPERATIVE_FEATURE):
        return None
    return {KEY_RANGES_TAG: encode_ranges([hashes])}
