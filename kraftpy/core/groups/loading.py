"""Replays batches of a log of `__consumer_offsets` into a machine.

Rules: a record that can't be read is left out and counted; a damaged batch is an error, since a
committed offset might be lost behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

from kraftpy.core.groups.machine import GroupMachine
from kraftpy.core.groups.offset_runs import read_offset_runs
from kraftpy.core.groups.records import decode_record
from kraftpy.protocol.errors import DecodeError
from kraftpy.protocol.records import Buffer, Record, batch_data, read_records, split_batches


@dataclass
class Loaded:
    """How many records were read and left out so far; `problem` says why the first one was."""

    records: int = 0
    skipped: int = 0
    problem: str = ""


def load_batches(machine: GroupMachine, batches: Buffer, loaded: Loaded) -> None:
    """Takes in whole batches, oldest first; adds to `loaded`. Raises `DecodeError` for damage."""
    for position, header in split_batches(batches):
        if header.is_control or header.is_transactional:
            loaded.skipped += header.records_count
            continue
        data = batch_data(header, batches, position)
        runs = read_offset_runs(data, header.records_count)
        if runs is None:
            for record in read_records(header, data):
                _load(machine, record, loaded)
            continue
        for run in runs:
            machine.load_offsets(run)
        loaded.records += header.records_count


def _load(machine: GroupMachine, record: Record, loaded: Loaded) -> None:
    try:
        decoded = decode_record(record.key, record.value)
    except DecodeError as error:
        loaded.problem = loaded.problem or f"the record at offset {record.offset}: {error}"
        decoded = None
    if decoded is None:
        loaded.skipped += 1
    else:
        machine.load(decoded)
        loaded.records += 1
