"""Transactions that know how far those before them have come; nothing of Spark is imported.

A task writes its rows in a transaction, and a marker with them: an offset that is committed for a
group of the task's own. So rows and marker count together or not at all, and whoever has to do the
task again finds by the marker whether its rows are there. Rules:

* A series of transactions is one task's, whoever does it: its transactional id is the same for all
  attempts. An attempt begins by taking the id over, which aborts what others have left open and
  fences them; only then it looks for the marker. So nobody moves the marker behind its back.
* A marker is an offset that only grows, and its metadata says how many rows it stands for.
* A marker belongs to a partition of the topic that is written to: where that topic is gone, or was
  made anew, its markers are gone with the rows.
* Transactions that were handed over are ended all, whatever comes of one. Those that couldn't be
  committed are written anew by who repeats the task.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from kraftpy.client.cluster import Cluster
from kraftpy.client.coordinator import GroupMetadata
from kraftpy.client.group_admin import CommittedOffset, GroupAdmin
from kraftpy.client.offsets import Partition
from kraftpy.client.transactional_producer import (
    OpenTransaction,
    ProducerFencedError,
    TransactionalProducer,
    TransactionError,
    end_transaction,
)
from kraftpy.frozen import NamedTuple
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.spark.positions import OptionError
from kraftpy.spark.settings import WriteSettings
from kraftpy.wording import counted

_ENDED_AT_ONCE = 50


class RepeatedError(RuntimeError):
    """What is to be written isn't what was written under the same name before."""


class NotCommittedError(RuntimeError):
    """Some of the transactions of a batch couldn't be committed."""


class Marker(NamedTuple):
    """How far a series has come, and the rows of its last transaction."""

    offset: int
    rows: int

    @property
    def text(self) -> str:
        """What is stored with the offset."""
        return json.dumps({"rows": self.rows})

    @classmethod
    def read(cls, found: CommittedOffset) -> Marker:
        """The marker that was stored; raises RepeatedError."""
        try:
            rows = json.loads(found.metadata)["rows"]
        except (ValueError, LookupError, TypeError):
            rows = None
        if not isinstance(rows, int):
            raise RepeatedError(
                f"offset {found.offset} was committed by somebody else: its metadata is"
                f" {found.metadata!r:.100} and should say how many rows were written"
            )
        return cls(found.offset, rows)


class Series(NamedTuple):
    """Transactions of which each goes on where the one before ended; `place` has their markers."""

    transactional_id: str
    group: str
    place: Partition

    @classmethod
    def of_task(cls, query: str, task: int, topic: str) -> Series:
        """What a task of a query, or job, writes to a topic."""
        return cls(f"kraftpy.{query}.{task}", f"kraftpy-sink.{query}.{task}", (topic, 0))

    def check_repeated(self, marker: Marker, now: Marker) -> None:
        """RepeatedError unless what comes now is what the marker stands for."""
        if marker == now:
            return
        name = self.transactional_id
        if marker.offset != now.offset:
            raise RepeatedError(
                f"{name} has written batch {marker.offset - 1}, and batch {now.offset - 1} comes"
                " now: the checkpoint is older than what was written. Go on with the one that was"
                " in use, or begin with a new one"
            )
        raise RepeatedError(
            f"{name} has {now.rows} rows to write, and what was written under this name has"
            f" {marker.rows}: a batch that is repeated has to have the same rows in the same"
            " tasks (a job with other rows needs another jobId)"
        )


class MarkingProducer(TransactionalProducer[bytes, bytes]):
    """The producer of a series: begin, send, mark; then commit, or hand over."""

    def __init__(self, cluster: Cluster, settings: WriteSettings, series: Series) -> None:
        options = dict(settings.producer)
        options.pop("idempotent", None)  # it is, always
        super().__init__(
            cluster,
            series.transactional_id,
            transaction_timeout_ms=settings.transaction_timeout_ms,
            auto_create=settings.create_topics,
            **options,
        )
        self._settings = settings
        self._series = series
        self._groups = GroupAdmin(cluster)

    async def begin(self) -> Marker | None:
        """Begins a transaction; how far those before it have come, None if there was none."""
        try:
            await self.begin_transaction()
        except KafkaError as error:
            raise self._explained(error) from error
        found = await self._groups.committed(self._series.group, stable=True)
        committed = found.get(self._series.place)
        return None if committed is None else Marker.read(committed)

    async def mark(self, marker: Marker) -> None:
        """Adds to the transaction how far the series has come with it."""
        place, group = self._series.place, GroupMetadata(self._series.group)
        await self.send_offsets_to_transaction({place: marker.offset}, group, marker.text)

    def _explained(self, error: KafkaError) -> Exception:
        bootstrap = self._settings.client.bootstrap
        if error.code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            return OptionError(
                f"option kafka.transaction.timeout.ms is {self._settings.transaction_timeout_ms},"
                f" more than transaction.max.timeout.ms of the brokers at {bootstrap}: set it to"
                " that or less"
            )
        if error.code == ErrorCode.UNSUPPORTED_VERSION:
            return OptionError(
                f"option exactlyOnce needs transactions, which the brokers at {bootstrap} don't"
                f" have ({error.message}): leave it out, or upgrade them"
            )
        return error


def take_over(settings: WriteSettings, several: Sequence[Series]) -> list[Marker | None]:
    """Aborts what others have open of these series, and fences them; how far each has come."""

    async def run() -> list[Marker | None]:
        found = []
        async with settings.client.connect() as cluster:
            for series in several:
                producer = MarkingProducer(cluster, settings, series)
                async with producer:
                    found.append(await producer.begin())
        return found

    return asyncio.run(run())


def end_all(
    settings: WriteSettings, transactions: Sequence[OpenTransaction], *, committed: bool
) -> None:
    """Ends what tasks have handed over; raises NotCommittedError if that fails for some."""
    if not transactions:
        return
    errors = asyncio.run(_end_all(settings, transactions, committed))
    if errors:
        raise NotCommittedError(_told(settings, transactions, committed, errors)) from errors[0]


async def _end_all(
    settings: WriteSettings, transactions: Sequence[OpenTransaction], committed: bool
) -> list[Exception]:
    few = asyncio.Semaphore(_ENDED_AT_ONCE)

    async with settings.client.connect() as cluster:

        async def end(transaction: OpenTransaction) -> Exception | None:
            async with few:
                try:
                    await end_transaction(cluster, transaction, committed=committed)
                except ProducerFencedError as error:
                    return error if committed else None  # whoever fenced it has aborted it
                except (ConnectionError, KafkaError, TransactionError) as error:
                    return error
            return None

        ended = await asyncio.gather(*map(end, transactions))
    return [error for error in ended if error is not None]


def _told(
    settings: WriteSettings,
    transactions: Sequence[OpenTransaction],
    committed: bool,
    errors: Sequence[Exception],
) -> str:
    verb = "committed" if committed else "aborted"
    reason = str(errors[0]).rstrip(".")
    return (
        f"{len(errors)} of {counted(len(transactions), 'transaction')} of the batch couldn't be"
        f" {verb}:"
        f" {reason}. Start it again, which writes what isn't committed. Brokers abort transactions"
        f" that are open for more than kafka.transaction.timeout.ms"
        f" ({settings.transaction_timeout_ms}): a batch that takes longer needs more"
    )
