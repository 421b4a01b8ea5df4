"""The cluster for blocking callers: a planner that wants offsets, a task that wants records.

Rules:

* A `Brokers` has an event loop of its own, which runs only while one of its methods does. Its
  connections are `kraftpy.client`'s, which follow leaders and know what may be tried again.
* Planning asks again `retries` times, on new connections, as Spark's fetchOffset.numRetries says.
* A task may go without progress for `poll_timeout_ms`; then the last error is raised.
* The next fetch is on its way while the records of the last one are decoded. It asks for about as
  many bytes as the task still needs, so that small tasks don't make a broker send large answers.
* Of a slice of the keys the broker is asked for its records alone; whether it does so or sends all
  of the partition, the decoder chooses. What was looked through needn't be waited for, so such a
  fetch waits at the broker only behind one that led nowhere.
* Offsets that are gone end the task (`DataLossError`), or are skipped with one warning when
  `fail_on_data_loss` is off: then reading goes on where the log begins, or stops where it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from kraftpy.client.cluster import Cluster, NoBrokerError, Retry, check, is_retriable, new_lane
from kraftpy.client.fetcher import aborted_of, scanned_of
from kraftpy.client.isolation import Aborted
from kraftpy.client.offsets import EARLIEST, LATEST, READ_COMMITTED, list_offsets
from kraftpy.protocol import messages
from kraftpy.protocol.errors import DecodeError, ErrorCode, KafkaError, error_code
from kraftpy.spark.decoder import Slice, decode, find_batches
from kraftpy.spark.key_slices import key_ranges
from kraftpy.spark.positions import Offsets, OptionError, Partition
from kraftpy.spark.settings import ClientSettings

if TYPE_CHECKING:
    import pyarrow as pa

_logger = logging.getLogger("kraftpy.spark")

T = TypeVar("T")

_FIRST_FETCH_BYTES = 1 << 20
_MISSING_TOPIC_PATIENCE_S = 10.0


_GO_ON = (
    "Some records may have been lost before they were read: retention removed them, or the topic"
    " was deleted or made anew. To go on without them, set the option failOnDataLoss to false (of"
    " kraftpy pipeline load, stream, mirror and report: --option failOnDataLoss=false)"
)


class DataLossError(RuntimeError):
    """Offsets that were to be read are not there any more; `advice` says what to do then."""

    def __init__(self, what: str, advice: str = _GO_ON) -> None:
        super().__init__(f"{what}. {advice}")


def report_loss(what: str, fail: bool, why: str = "as failOnDataLoss is false") -> None:
    """Raises DataLossError, or warns and says why it doesn't matter."""
    if fail:
        raise DataLossError(what)
    _logger.warning("%s; going on without them, %s", what, why)


class Brokers:
    """Blocking questions to a cluster; `with Brokers(settings)` closes the connections."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._loop = asyncio.new_event_loop()
        self._cluster: Cluster | None = None
        self._lane = new_lane("spark")

    def __enter__(self) -> Brokers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections and the loop."""
        if self._loop.is_closed():
            return
        if self._cluster is not None:
            self.run(self._cluster.close())
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on this client's loop to its end."""
        return self._loop.run_until_complete(work)

    def cluster(self) -> Cluster:
        """The connections; only for coroutines that this client runs."""
        if self._cluster is None:
            self._cluster = self.settings.connect()
        return self._cluster

    # -- planning

    def _patiently(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        for left in range(self.settings.retries, -1, -1):
            try:
                return self.run(ask())
            except (ConnectionError, KafkaError) as error:
                refused = isinstance(error, KafkaError) and not is_retriable(error)
                if not left or refused:
                    raise
                _logger.warning("%s; asking again", error)
                cluster, self._cluster = self._cluster, None
                if cluster is not None:
                    self.run(cluster.close())
                time.sleep(self.settings.retry_interval_ms / 1000)
        raise AssertionError("unreachable")

    def topics(self) -> list[str]:
        """The names of all topics but the cluster's own."""

        async def ask() -> list[str]:
            cluster = self.cluster()
            await cluster.refresh(None)
            return sorted(t.name for t in cluster.topics.values() if not t.internal)

        return self._patiently(ask)

    def partitions(self, topics: Iterable[str]) -> dict[str, list[int]]:
        """The partitions of those of the topics that exist."""
        names = list(topics)

        async def ask() -> dict[str, list[int]]:
            cluster = self.cluster()
            errors = await cluster.refresh(names) if names else {}
            for name, error in errors.items():
                if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise KafkaError(error.code, f"topic {name!r}: {error.message}")
            return {
                name: sorted(cluster.topics[name].partitions)
                for name in names
                if name not in errors
            }

        return self._patiently(ask)

    def offsets(self, wanted: Mapping[Partition, int], isolation: int | None = None) -> Offsets:
        """By partition the first offset from a time (ms) on, -1 if there is none.

        EARLIEST and LATEST stand for the log's start and, by isolation level, its readable end.
        """
        level = self.settings.isolation if isolation is None else isolation

        async def ask() -> Offsets:
            return await list_offsets(self.cluster(), wanted, isolation=level)

        return self._patiently(ask) if wanted else {}

    def earliest(self, partitions: Iterable[Partition]) -> Offsets:
        """Where the logs start."""
        return self.offsets(dict.fromkeys(partitions, EARLIEST))

    def latest(self, partitions: Iterable[Partition], isolation: int | None = None) -> Offsets:
        """Where the logs end, for a reader of this isolation level or of another."""
        return self.offsets(dict.fromkeys(partitions, LATEST), isolation)

    # -- reading

    def read(
        self,
        wanted: Slice,
        columns: Sequence[str],
        *,
        fail_on_data_loss: bool = True,
        must_exist: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """The records of a slice as Arrow batches with these columns.

        Without `must_exist` there are none if the topic or partition isn't there any more. Raises
        DataLossError, KafkaError (CORRUPT_MESSAGE for damage) and ConnectionError.
        """
        reading = _Reading(self, wanted, fail_on_data_loss, must_exist)
        ahead: asyncio.Task[Any] | None = None
        try:
            while reading.left:
                response = self._answer(reading, ahead)
                ahead = None
                if response is None:
                    continue
                here = reading.left
                try:
                    found, next_offset = find_batches(
                        response.records or b"", here, _aborted(response, self.settings)
                    )
                    reading.move(max(next_offset, scanned_of(response)), response)
                    if reading.left:
                        ahead = self._start_fetch(reading)
                    yield from decode(response.records or b"", found, here, columns)
                except DecodeError as error:
                    raise KafkaError(
                        ErrorCode.CORRUPT_MESSAGE,
                        f"{here.topic}-{here.partition} from offset {here.start}: {error}",
                    ) from error
        finally:
            if ahead is not None:
                self._give_up(ahead)

    def fetch_stored(self, wanted: Slice, max_bytes: int) -> Any:
        """A fetch's answer as it is stored, damaged or not, from the slice's start on.

        Raises DataLossError if the log ends before it, ConnectionError, and KafkaError:
        CORRUPT_MESSAGE, OFFSET_OUT_OF_RANGE.
        """
        patience = Retry(self.settings.poll_timeout_ms)
        deadline = time.monotonic() + self.settings.poll_timeout_ms / 1000
        while time.monotonic() < deadline:
            try:
                data = self.run(self._fetch(wanted, max_bytes))
                check(data.error_code)
            except (ConnectionError, KafkaError) as error:
                if isinstance(error, KafkaError) and error.code == ErrorCode.CORRUPT_MESSAGE:
                    raise
                self.run(patience.wait(error))
                self.cluster().topics.pop(wanted.topic, None)
            else:
                if data.records:
                    return data
        raise DataLossError(
            f"{wanted.topic}-{wanted.partition} has no record at offsets {wanted.start} to"
            f" {wanted.end - 1}"
        )

    def _start_fetch(self, reading: _Reading) -> asyncio.Task[Any]:
        task = self._loop.create_task(self._fetch(*reading.question()))
        # One turn of the loop sends the request; the answer arrives while records are decoded.
        self.run(asyncio.sleep(0))
        return task

    def _give_up(self, task: asyncio.Task[Any]) -> None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, ConnectionError, KafkaError):
            self._loop.run_until_complete(task)

    def _answer(self, reading: _Reading, ahead: asyncio.Task[Any] | None) -> Any:
        """A partition's data, or None if it has to be asked for again."""
        if ahead is not None:
            # Spark may have kept us waiting for longer than a request lives: that says nothing.
            with contextlib.suppress(ConnectionError, KafkaError):
                return reading.check(self._loop.run_until_complete(ahead))
        try:
            data = self.run(self._fetch(*reading.question()))
            return reading.check(data)
        except (ConnectionError, KafkaError) as error:
            self.run(reading.recover(error))
            return None

    async def _fetch(self, wanted: Slice, max_bytes: int, at_once: bool = False) -> Any:
        """A fetch of one partition from its leader; the partition's part of the answer.

        `at_once`: a broker that looks for a slice isn't to wait for records.
        """
        cluster = self.cluster()
        await cluster.topic(wanted.topic)
        node_id = cluster.leader(wanted.topic, wanted.partition)
        tags = None
        if wanted.hashes is not None:
            await cluster.connection(node_id, self._lane)
            tags = key_ranges(wanted.hashes, cluster)
        kinds = messages.FetchRequest
        partition = kinds.FetchPartition(
            partition=wanted.partition,
            fetch_offset=wanted.start,
            partition_max_bytes=max_bytes,
            _tags=tags,
        )
        request = kinds(
            replica_id=-1,
            max_wait_ms=0 if tags and at_once else self.settings.max_wait_ms,
            min_bytes=1,
            max_bytes=self.settings.fetch_max_bytes,
            isolation_level=self.settings.isolation,
            session_epoch=-1,
            topics=[kinds.FetchTopic(topic=wanted.topic, partitions=[partition])],
        )
        response = await cluster.request(
            request,
            node_id=node_id,
            lane=self._lane,
            timeout_ms=self.settings.max_wait_ms + self.settings.request_timeout_ms,
        )
        check(response.error_code)
        for topic in response.responses:
            for data in topic.partitions:
                if topic.topic == wanted.topic and data.partition_index == wanted.partition:
                    return data
        raise ConnectionError(f"the answer lacks {wanted.topic}-{wanted.partition}")


def _aborted(response: Any, settings: ClientSettings) -> list[Aborted]:
    return aborted_of(response) if settings.isolation == READ_COMMITTED else []


class _Reading:
    """How far a task has come with its slice; `left` is what it still wants, None at the end."""

    def __init__(
        self, brokers: Brokers, wanted: Slice, fail_on_data_loss: bool, must_exist: bool
    ) -> None:
        self.left: Any = wanted if wanted.start < wanted.end else None
        self._brokers = brokers
        self._fail = fail_on_data_loss
        self._must_exist = must_exist
        self._bytes_per_offset = 0.0
        self._all_is_sent = False
        self._led_nowhere = False
        self._retry: Retry | None = None
        self._progress_at = time.monotonic()

    def question(self) -> tuple[Slice, int, bool]:
        """What to fetch next: the arguments of `Brokers._fetch`."""
        wanted = replace(self.left, hashes=None) if self._all_is_sent else self.left
        return wanted, self.bytes_wanted(), not self._led_nowhere

    def bytes_wanted(self) -> int:
        """How large an answer to ask for: a guess from those before, the first one small."""
        limit = self._brokers.settings.partition_max_bytes
        if not self._bytes_per_offset:
            return min(limit, _FIRST_FETCH_BYTES)
        offsets = self.left.end - self.left.start
        return min(limit, int(offsets * self._bytes_per_offset * 1.1) + (64 << 10))

    def move(self, next_offset: int, response: Any) -> None:
        """Goes on from an offset; an answer that leads nowhere is tolerated for a while."""
        moved = next_offset - self.left.start
        self._led_nowhere = not moved
        now = time.monotonic()
        if moved:
            self._bytes_per_offset = len(response.records or b"") / moved
            self._progress_at = now
            self.left = replace(self.left, start=next_offset)
            if next_offset >= self.left.end:
                self.left = None
            return
        if response.records:
            raise DecodeError(f"an answer of {len(response.records)} bytes without a whole batch")
        if now - self._progress_at > self._brokers.settings.poll_timeout_ms / 1000:
            self._lose(
                f"{self._name()} has no record at offsets {self.left.start} to {self.left.end - 1}"
                f" (its log ends at {response.high_watermark})"
            )
            self.left = None

    def check(self, data: Any) -> Any:
        """The data, unless it tells of an error; None if it has to be asked for in another way.

        That is where offsets are gone, which are passed, and of a topic that isn't sent in slices.
        """
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._find_log()
            return None
        if data.error_code == ErrorCode.TOPIC_RANGE_FETCH_NOT_ALLOWED and not self._all_is_sent:
            self._all_is_sent = True
            return None
        if data.error_code:
            code = error_code(data.error_code)
            raise KafkaError(code, f"{self._name()}: {code.message}")
        self._retry = None
        return data

    async def recover(self, error: Exception) -> None:
        """Waits before the next attempt; raises the error when it isn't worth one."""
        missing = (
            isinstance(error, KafkaError) and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
        if isinstance(error, NoBrokerError):
            # Whoever planned this task has reached them: they are away, not misspelt.
            error = NoBrokerError(str(error), first_contact=False)
        patience_s = self._brokers.settings.poll_timeout_ms / 1000
        if missing:
            patience_s = min(patience_s, _MISSING_TOPIC_PATIENCE_S)
        if self._retry is None:
            self._retry = Retry(int(patience_s * 1000))
        try:
            await self._retry.wait(error)
        except KafkaError:
            if not missing:
                raise
            what = (
                f"{self._name()} does not exist any more: {self.left.end - self.left.start} "
                f"offsets ({self.left.start} to {self.left.end - 1}) are gone"
            )
            if self._must_exist:
                self._lose(what)
            else:
                report_loss(what, fail=False, why="as it isn't assigned any more")
            self.left = None
        else:
            self._brokers.cluster().topics.pop(self.left.topic, None)

    def _find_log(self) -> None:
        """Deals with a position outside of the log."""
        name = (self.left.topic, self.left.partition)
        start = self._brokers.earliest([name])[name]
        if self.left.start >= start:
            end = self._brokers.offsets({name: LATEST})[name]
            self._lose(
                f"{self._name()} ends at offset {end}, before offset {self.left.start}: "
                f"{self.left.end - self.left.start} offsets are gone"
            )
            self.left = None
            return
        stop = min(start, self.left.end)
        self._lose(
            f"{self._name()} starts at offset {start}: {stop - self.left.start} offsets "
            f"({self.left.start} to {stop - 1}) are gone"
        )
        self.left = replace(self.left, start=stop) if stop < self.left.end else None

    def _lose(self, what: str) -> None:
        report_loss(what, self._fail)

    def _name(self) -> str:
        return f"partition {self.left.partition} of topic {self.left.topic!r}"


def existing(brokers: Brokers, topics: Sequence[str]) -> dict[str, list[int]]:
    """The partitions of topics that have to be there; OptionError names those that are not."""
    found = brokers.partitions(topics)
    missing = [name for name in topics if name not in found]
    if missing:
        raise OptionError(
            f"topic {', '.join(map(repr, missing))} does not exist on {brokers.settings.bootstrap}"
            f": create it with `kraftpy topic create {missing[0]}`, or mend option subscribe"
        )
    return found
