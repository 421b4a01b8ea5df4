"""What a consumer reads now: partitions and slices, positions, what is fetched ahead.

Rules:
* A partition has a position once it is known where to begin: at the group's committed offset, or
  else where auto.offset.reset says. That is found out while others are read.
* `advance` starts whatever is due and takes in what is done; it never waits.
* What was fetched before a position was changed is thrown away.
* A partition is fetched by one intake, as `deal` says when it comes (`streams`).
* What is held was handed out and isn't processed: it isn't committed. Whoever reads a partition
  elsewhere or loses it holds nothing of it any more.
* Of a partition whose group has as many claims as it may, nothing more is fetched for the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kraftpy.client.claims import Progress
from kraftpy.client.cluster import Cluster
from kraftpy.client.consumer_records import ConsumerRecord, FetchedRecords
from kraftpy.client.consumer_shares import ConsumerShares
from kraftpy.client.coordinator import Generation
from kraftpy.client.fetcher import Fetcher
from kraftpy.client.intake import Intake
from kraftpy.client.offsets import (
    EARLIEST,
    LATEST,
    Offset,
    Partition,
    list_offsets,
    with_metadata,
)
from kraftpy.client.spans import Spans
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.extensions import Cooperation


@dataclass(eq=False, slots=True)
class Held:
    """A record that was handed out and isn't processed; each is only itself."""

    offset: int


class Reading:
    """The partitions of one consumer."""

    def __init__(
        self,
        cluster: Cluster,
        shares: ConsumerShares,
        fetched: Callable[[], FetchedRecords],
        *,
        auto_offset_reset: str,
        isolation: int,
        as_whom: Callable[[Generation], Cooperation | None],
        **fetch_options: Any,
    ) -> None:
        self.assigned: frozenset[Partition] = frozenset()
        self.positions: dict[Partition, int] = {}
        self.paused: set[Partition] = set()
        self._cluster = cluster
        self._auto_offset_reset = auto_offset_reset
        self._isolation = isolation
        self._as_whom = as_whom
        self.held: dict[Partition, Held] = {}
        self._fetch_options = {
            "auto_offset_reset": auto_offset_reset,
            "isolation": isolation,
            **fetch_options,
        }
        self._shares = shares
        self._make_fetched = fetched
        self._begun: dict[Partition, int] = {}
        self._rewound: dict[Partition, int] = {}
        """Where partitions began that were rewound: there they go on if nothing is committed."""
        self._locating: asyncio.Task[dict[Partition, Progress]] | None = None
        self._locating_as = Generation()
        self._homes: dict[Partition, Intake] = {}
        self._intakes: list[Intake] = []
        self._first = self.add_intake()
        self.deal = self._deal_to_first

    def add_intake(self) -> Intake:
        """One more, for `deal` to give partitions to."""
        fetcher = Fetcher(self._cluster, {}, **self._fetch_options)
        fetcher.ledgers = self._shares.ledgers
        intake = Intake(fetcher, self._make_fetched())
        self._intakes.append(intake)
        return intake

    async def no_streams(self) -> None:
        """What comes is dealt to the first intake again; there are no others."""
        self.deal = self._deal_to_first
        others, self._intakes = self._intakes[1:], self._intakes[:1]
        await asyncio.gather(*(intake.close() for intake in others))

    def _deal_to_first(self, name: Partition) -> Intake:
        return self._first

    def _intake(self, name: Partition) -> Intake:
        return self._homes.get(name, self._first)

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        """What is under way."""
        tasks: list[asyncio.Task[Any] | None] = [self._locating]
        tasks += [intake.fetching for intake in self._intakes]
        return [task for task in tasks if task is not None]

    async def close(self) -> None:
        """Gives up what is under way."""
        tasks = self.tasks
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for intake in self._intakes:
            await intake.close()

    # -- records

    def __bool__(self) -> bool:
        """Whether something was fetched that may be handed out."""
        return bool(self._first.fetched)

    def take(self, most: int) -> list[ConsumerRecord[Any, Any]]:
        """Hands records out; see `FetchedRecords.take`."""
        return self._first.fetched.take(most, self.positions)

    def count_as_processed(self, offsets: Mapping[Partition, Offset] | None = None) -> None:
        """What `take` handed out last is processed: all of it, or what is below these offsets."""
        in_hand = self._first.fetched.in_hand
        if offsets is None:
            in_hand.clear()
            return
        for name in in_hand.keys() & offsets.keys():
            in_hand[name] = max(in_hand[name], with_metadata(offsets[name]).offset)

    def give_up_what_is_in_hand(self) -> None:
        """What of that doesn't count as processed won't be processed here."""
        for name, offset in self._first.fetched.in_hand.items():
            if name not in self.positions:
                continue
            if name in self._shares.ledgers:
                self._shares.ledgers[name].not_done_from(offset)
            else:
                self.held[name] = Held(offset)

    def advance(self, generation: Generation) -> None:
        """Takes in what is done and starts what is due; raises what went wrong for good."""
        if generation != self._locating_as:
            self._stop_locating()  # What a former generation is refused says nothing of this one.
            self._locating_as = generation
        if self._locating is not None and self._locating.done():
            located, self._locating = self._locating, None
            self._begin(located.result())
        for name in self._shares.lose_place():
            self.positions.pop(name, None)
            self._intake(name).fetcher.drop(*name)
            self._intake(name).drop(name)
        for name, ledger in self._shares.ledgers.items():
            if ledger.full:
                self._intake(name).fetcher.drop(*name)
            elif name in self.positions and name not in self.paused:
                self._intake(name).fetcher.positions.setdefault(name, self.positions[name])
        missing = (self.assigned - self.positions.keys()) | self._shares.unlocated
        if missing and self._locating is None:
            self._locating = asyncio.create_task(self._locate(missing, generation))
        for intake in self._intakes:
            intake.fetcher.cooperation = self._as_whom(generation)
            self._accept(intake)
            intake.fetch_if_due()

    def _accept(self, intake: Intake) -> None:
        """Keeps what was fetched, but for partitions whose position was changed meanwhile."""
        for each in intake.take_in():
            name = (each.topic, each.partition)
            if name in intake.disregard or name not in self.positions:
                if name in intake.fetcher.positions:
                    intake.fetcher.positions[name] = self.positions[name]
                if name in self._shares.ledgers:
                    self._shares.ledgers[name].rewind()
            else:
                intake.fetched.add(each)

    @property
    def processed(self) -> Mapping[Partition, int]:
        """The positions, but for what is held: those of the next records to process."""
        if not self.held:
            return self.positions
        held = {
            name: min(each.offset, self.positions[name])
            for name, each in self.held.items()
            if name in self.positions
        }
        return {**self.positions, **held}

    def finish(self, name: Partition) -> None:
        """What is held of a partition is processed."""
        held = self.held.pop(name)
        ledger = self._shares.ledgers.get(name)
        if ledger is not None and self._shares.one_by_one:
            ledger.done(held.offset)

    # -- where to begin

    def _begin(self, located: Mapping[Partition, Progress]) -> None:
        for name, each in located.items():
            if name not in self.assigned:
                continue
            self._rewound.pop(name, None)
            ledger = self._shares.begin(name, each)
            if ledger is not None:
                if name not in self.positions:
                    self._begun[name] = ledger.position
                self.positions[name] = ledger.position
            elif name not in self.positions:
                self._go_to(name, each.stable)
            elif name not in self.paused:
                self._intake(name).fetcher.positions.setdefault(name, self.positions[name])

    async def _locate(
        self, partitions: Iterable[Partition], generation: Generation
    ) -> dict[Partition, Progress]:
        return await self._shares.locate(partitions, generation, self._reset)

    async def _reset(self, names: Sequence[Partition]) -> dict[Partition, int]:
        rewound = {name: self._rewound[name] for name in names if name in self._rewound}
        others = [name for name in names if name not in rewound]
        if others and self._auto_offset_reset == "none":
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"nothing is committed for {others[0][0]}-{others[0][1]}, and auto_offset_reset "
                "is none: seek() to where it shall begin",
            )
        when = EARLIEST if self._auto_offset_reset == "earliest" else LATEST
        times = dict.fromkeys(others, when)
        return rewound | await list_offsets(self._cluster, times, isolation=self._isolation)

    async def position(self, name: Partition, generation: Generation) -> int:
        """The offset of the record that comes next of an assigned partition."""
        if name not in self.positions:
            located = await self._locate([name], generation)
            if name not in self.positions:
                self._begin(located)
        return self.positions[name]

    # -- what comes and goes

    def have(self, slices: Mapping[Partition, Spans]) -> None:
        """Reads these slices from now on, and goes on with what it has read of them."""
        before = self._shares.ranges
        self.assigned = frozenset(slices)
        for name in sorted(slices.keys() - self._homes.keys()):
            intake = self._homes[name] = self.deal(name)
            intake.partitions.add(name)
        for name, each in slices.items():
            position = self.positions.get(name)
            read = None if position is None else (self._begun.get(name, position), position)
            if self._shares.change(name, each, read):
                self._drop_fetched(name)
                self._intake(name).fetcher.drop(*name)
                if name not in self._shares.ledgers:
                    self.positions.pop(name, None)
        if self._shares.ranges != before:
            self._stop_locating()

    def forget(self, partitions: Iterable[Partition]) -> list[Partition]:
        """Has these partitions no more; returns them sorted."""
        gone = frozenset(partitions) & self.assigned
        self.assigned -= gone
        for name in gone:
            self._shares.forget(name)
            self._begun.pop(name, None)
            self._rewound.pop(name, None)
            self.positions.pop(name, None)
            self.paused.discard(name)
            self.held.pop(name, None)
            self._drop_fetched(name)
            intake = self._homes.pop(name, self._first)
            intake.fetcher.drop(*name)
            intake.partitions.discard(name)
        if gone:
            self._stop_locating()
        return sorted(gone)

    def rewind(self) -> None:
        """Goes on from where the group stands, or else it began, with all that it has now."""
        slices, paused = self._shares.spans, set(self.paused)
        rewound = self._rewound | self._begun
        self.forget(self.assigned)
        self.have(slices)
        self._rewound = rewound
        self.paused |= paused

    def _stop_locating(self) -> None:
        locating, self._locating = self._locating, None
        if locating is not None and not locating.cancel() and not locating.cancelled():
            locating.exception()  # It's nobody's any more.

    # -- positions

    def seek(self, name: Partition, offset: int) -> None:
        """Goes on from an offset."""
        self._shares.seek(name, offset)
        self._go_to(name, offset)

    def _go_to(self, name: Partition, offset: int) -> None:
        self.positions[name] = self._begun[name] = offset
        self.held.pop(name, None)
        self._first.fetched.in_hand.pop(name, None)
        self._drop_fetched(name)
        if name not in self.paused:
            self._follow(name)

    def _follow(self, name: Partition) -> None:
        """Fetches from the position on; not before it's known whose records are handed out."""
        if not self._shares.lacks_ledger(name):
            self._intake(name).fetcher.positions[name] = self.positions[name]

    def pause(self, name: Partition) -> None:
        """Fetches nothing of a partition until it is resumed."""
        self.paused.add(name)
        self._drop_fetched(name)
        self._intake(name).fetcher.drop(*name)

    def resume(self, name: Partition) -> None:
        """Takes a paused partition up where it was left."""
        if name in self.paused:
            self.paused.discard(name)
            if name in self.positions:
                self._drop_fetched(name)
                self._follow(name)

    def _drop_fetched(self, name: Partition) -> None:
        """Throws away what was fetched of a partition, here and under way."""
        self._intake(name).drop(name)
        if name in self._shares.ledgers:
            self._shares.ledgers[name].rewind()
