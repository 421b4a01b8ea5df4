"""The process that opens batches: `python -m MODULE PARENT-PID`.

It reads jobs from its standard input and writes a result for each, until the input ends. A job or a
result is two sizes, a small JSON text, and the bytes of a batch. It dies with its broker, and is
nice: what takes long here comes after what doesn't.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from struct import Struct
from typing import Any, BinaryIO, Final

from kraftpy.protocol.downconversion import downconvert
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError
from kraftpy.protocol.key_index import BatchCutter, KeyIndex, key_index
from kraftpy.protocol.legacy import upconvert
from kraftpy.protocol.record_batch import (
    COMPRESSION_MASK,
    BatchHeader,
    CorruptBatch,
    check_batch,
)
from kraftpy.protocol.record_rules import InvalidRecords, RecordRules, conform
from kraftpy.protocol.record_walk import OversizedBatch, open_batch
from kraftpy.protocol.records import find_timestamp, max_timestamp_of

SIZES: Final = Struct(">II")
_PR_SET_PDEATHSIG = 1
_NICENESS = 5

Fields = dict[str, Any]


def work(job: Fields, batch: bytearray) -> tuple[Fields, bytes | bytearray | memoryview]:
    """The result of one job; of a batch that is refused, the error."""
    try:
        match job:
            case {"conform": rules}:
                return {}, conform(batch, RecordRules(*rules))
            case {"find": [timestamp, min_offset, limit]}:
                found = find_timestamp(
                    batch, 0, timestamp, min_offset=min_offset, max_size_bytes=limit
                )
            case {"index": [limit, keep_max]}:
                header, data, index = _opened(batch, limit)
                keeps = header.attributes & COMPRESSION_MASK and len(data) <= keep_max
                return {"count": len(index)}, index.to_bytes() + (data if keeps else b"")
            case {"cut": [ranges, limit]}:
                header, data, index = _opened(batch, limit)
                pieces = index.pieces(data, index.numbers(ranges))
                return {}, b"".join(BatchCutter(header).cut(pieces))
            case {"upconvert": limit}:
                return {}, upconvert(batch, max_size_bytes=limit)
            case {"downconvert": [magic, first_offset, limit]}:
                header = check_batch(batch)
                data = open_batch(header, batch, 0, limit)
                messages, count = downconvert(header, data, magic, first_offset)
                return {"count": count}, messages
            case {"newest": limit}:
                found = max_timestamp_of(batch, max_size_bytes=limit)
            case _:
                raise ValueError(f"no job {job}")
    except InvalidRecords as error:
        return {"code": error.code, "message": error.message, "records": error.record_errors}, b""
    except KafkaError as error:
        return {"code": error.code, "message": error.message}, b""
    except (CorruptBatch, OversizedBatch) as error:
        return {"code": error.code, "message": str(error)}, b""
    except DecodeError as error:
        return {"code": ErrorCode.CORRUPT_MESSAGE, "message": str(error)}, b""
    return {"found": found}, b""


def _opened(batch: bytearray, max_size_bytes: int) -> tuple[BatchHeader, bytes, KeyIndex]:
    header = check_batch(batch)
    data = open_batch(header, batch, 0, max_size_bytes)
    return header, data, key_index(header, data)


def main(arguments: list[str]) -> int:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(arguments[0]):  # it died before the call above
        return 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the broker, which ends this
    os.nice(_NICENESS)
    serve(sys.stdin.buffer, sys.stdout.buffer)
    return 0


def serve(jobs: BinaryIO, results: BinaryIO) -> None:
    """Works until there are no more jobs."""
    while len(sizes := jobs.read(SIZES.size)) == SIZES.size:
        text_size, batch_size = SIZES.unpack(sizes)
        job = json.loads(jobs.read(text_size))
        fields, data = work(job, bytearray(jobs.read(batch_size)))
        text = json.dumps(fields).encode()
        results.write(SIZES.pack(len(text), len(data)) + text)
        results.write(data)
        results.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
