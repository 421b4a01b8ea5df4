"""A scripted broker with one partition that may be read in slices, and the claims of one group."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from kraftpy.client.offsets import EARLIEST, LATEST
from kraftpy.core.groups.individual.coverage import WHOLE, Claim, Coverage
from kraftpy.protocol import messages
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.extensions import (
    COOPERATIVE_FEATURE,
    EXPECTED_OFFSET_TAG,
    KEY_RANGES_MAX,
    KEY_RANGES_TAG,
    LAST_STABLE_OFFSET_TAG,
    OFFSET_RANGES_TAG,
    RANGES_MAX,
    SCANNED_OFFSET_TAG,
    SLICES_TAG,
    WANT_RANGES_TAG,
    decode_int64,
    decode_ranges,
    decode_slices,
    encode_epoch_slices,
    encode_int64,
    is_set,
)
from kraftpy.protocol.key_hash import key_hash
from kraftpy.protocol.records import build_batch

from .peer import Peer, list_offsets_answer

T0 = ("t", 0)
BATCH = 10
TOO_OLD, FULL = 10_004, 10_005


def ascend(ranges: list[tuple[int, int]]) -> bool:
    """Whether a coordinator would take them."""
    bounds = [bound for each in ranges for bound in each]
    return sorted(bounds) == bounds and all(a[1] < b[0] for a, b in pairwise(ranges))


class SlicesPeer(Peer):
    """Records `keys[offset]`; without the feature it knows neither slices nor claims.

    `codes` are errors for the next commits of claims.
    """

    def __init__(self, keys: list[bytes | None], *, feature: bool = True) -> None:
        super().__init__({"t": 1})
        self.versions |= {
            ApiKey.FIND_COORDINATOR: (0, 3),
            ApiKey.OFFSET_FETCH: (1, 9),
            ApiKey.OFFSET_COMMIT: (2, 9),
        }
        if feature:
            self.features[COOPERATIVE_FEATURE] = 1
        self.keys = keys
        self.stable = -1
        self.claims = Coverage()
        self.codes: list[int] = []
        self.answers[ApiKey.LIST_OFFSETS] = list_offsets_answer({EARLIEST: 0, LATEST: len(keys)})

    def _find_coordinator(self, request: Any) -> Any:
        return messages.FindCoordinatorResponse(node_id=1, host="127.0.0.1", port=self.port)

    # -- records

    def _fetch(self, request: Any) -> Any:
        (partition,) = request.topics[0].partitions
        tags = partition._tags or {}
        wanted = None
        if KEY_RANGES_TAG in tags:
            assert self.features, "a broker without the feature was asked for slices"
            wanted = decode_ranges(tags[KEY_RANGES_TAG], KEY_RANGES_MAX)
        begin = partition.fetch_offset
        end = min(begin // BATCH * BATCH + BATCH, len(self.keys))
        kinds = messages.FetchResponse
        data = kinds.PartitionData(
            partition_index=0,
            high_watermark=len(self.keys),
            records=self._records(begin, end, wanted) if end > partition.fetch_offset else b"",
        )
        if wanted is not None:
            data._tags = {SCANNED_OFFSET_TAG: encode_int64(max(end, partition.fetch_offset))}
        return kinds(responses=[kinds.FetchableTopicResponse(topic="t", partitions=[data])])

    def _records(self, begin: int, end: int, wanted: list[tuple[int, int]] | None) -> bytes:
        batches = []
        for offset in range(begin, end):
            hash_ = key_hash(self.keys[offset], offset)
            if wanted is None or any(low <= hash_ <= high for low, high in wanted):
                record = (0, self.keys[offset], b"%d" % offset, [])
                batches.append(build_batch([record], base_offset=offset))
        return b"".join(batches)

    # -- offsets

    def _offset_fetch(self, request: Any) -> Any:
        kinds = messages.OffsetFetchResponse
        if not request.groups:
            partition = kinds.OffsetFetchResponsePartition(0, committed_offset=self.stable)
            return kinds(topics=[kinds.OffsetFetchResponseTopic("t", [partition])])
        assert is_set(request, WANT_RANGES_TAG)
        found = kinds.OffsetFetchResponsePartitions(0, committed_offset=self.stable)
        slices: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        for claim in self.claims:
            slices.setdefault((claim.low, claim.high), []).append((claim.first, claim.last, 0))
        if slices:
            rows = [(low, high, ranges) for (low, high), ranges in slices.items()]
            found._tags = {SLICES_TAG: encode_epoch_slices(rows)}
        topic = kinds.OffsetFetchResponseTopics(name="t", partitions=[found])
        return kinds(groups=[kinds.OffsetFetchResponseGroup(group_id="g", topics=[topic])])

    def _offset_commit(self, request: Any) -> Any:
        kinds = messages.OffsetCommitResponse
        (partition,) = request.topics[0].partitions
        code, tags = self._commit(partition)
        answer = kinds.OffsetCommitResponsePartition(0, error_code=code, _tags=tags)
        return kinds(topics=[kinds.OffsetCommitResponseTopic(name="t", partitions=[answer])])

    def _commit(self, partition: Any) -> tuple[int, dict[int, bytes] | None]:
        tags = partition._tags or {}
        if EXPECTED_OFFSET_TAG in tags:
            if self.stable != decode_int64(tags[EXPECTED_OFFSET_TAG]):
                return 10_000, None
            self.stable = partition.committed_offset
            return 0, None
        if not {OFFSET_RANGES_TAG, SLICES_TAG} & tags.keys():
            assert partition.committed_offset >= 0
            self.stable = partition.committed_offset
            return 0, None
        assert self.features, "a broker without the feature was sent claims"
        assert partition.committed_offset == -1
        if self.codes:
            return self.codes.pop(0), {LAST_STABLE_OFFSET_TAG: encode_int64(self.stable)}
        rows: list[Any] = []
        if OFFSET_RANGES_TAG in tags:
            rows.append((*WHOLE, decode_ranges(tags[OFFSET_RANGES_TAG], RANGES_MAX)))
        if SLICES_TAG in tags:
            rows += decode_slices(tags[SLICES_TAG], RANGES_MAX)
        assert ascend([row[:2] for row in rows])
        for low, high, ranges in rows:
            assert ascend(ranges)
            for first, last in ranges:
                self.claims.add(Claim(low, high, first, last))
        self.stable = self.claims.stable_from(max(self.stable, 0))
        self.claims.discard_below(self.stable)
        return 0, {LAST_STABLE_OFFSET_TAG: encode_int64(self.stable)}
