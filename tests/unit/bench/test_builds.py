"""What a bare commit leaves out is not what a commit is."""

from __future__ import annotations

from kraftpy.core.groups.offset_runs import OffsetRun, OffsetRuns, read_offset_runs
from kraftpy.protocol import codec
from kraftpy.protocol.api import ApiKey
from kraftpy.protocol.messages import OffsetCommitRequest
from kraftpy.protocol.record_batch import read_batch_header
from tests.bench.builds import bare_commit

VERSION = 9
HEADER_BYTES = 61


def test_a_bare_commit_writes_keeps_and_answers_all_that_is_committed() -> None:
    topics = {"t": range(100), "u": [7]}
    request = OffsetCommitRequest(
        group_id="g",
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name,
                partitions=[
                    OffsetCommitRequest.OffsetCommitRequestPartition(
                        each, 1000 + each, 3, committed_metadata=None
                    )
                    for each in partitions
                ],
            )
            for name, partitions in topics.items()
        ],
    )
    parts = codec.encode_request(ApiKey.OFFSET_COMMIT, VERSION, 5, "client", request)
    kept: dict[tuple[str, str], OffsetRun] = {}
    batch, answer = bare_commit(memoryview(b"".join(parts)), kept, 42)
    wanted = [
        OffsetRun(
            "g",
            name,
            list(partitions),
            [1000 + each for each in partitions],
            [3] * len(partitions),
            [42] * len(partitions),
        )
        for name, partitions in topics.items()
    ]
    written = read_offset_runs(batch[HEADER_BYTES:], 101)
    assert written is not None
    assert list(OffsetRuns(written)) == list(OffsetRuns(wanted))
    assert read_batch_header(batch, 0).records_count == 101
    assert kept == {(run.group_id, run.topic): run for run in wanted}
    assert len(answer) == 4 + int.from_bytes(answer[:4])
    correlation_id, response = codec.decode_response(ApiKey.OFFSET_COMMIT, VERSION, answer[4:])
    assert correlation_id == 5
    answered = {
        topic.name: {each.partition_index: each.error_code for each in topic.partitions}
        for topic in response.topics
    }
    assert answered == {name: dict.fromkeys(each, 0) for name, each in topics.items()}
