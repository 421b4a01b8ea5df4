"""Members of a group that claim what they have done in transactions, of their second version.

A transaction takes in what is done, in one TxnOffsetCommit, and is committed or, now and then and
as long as there are faults, aborted; then its records come again. What it claims counts as
processed from the moment in which the member asks for the commit. Who doesn't hear how one has
ended begins anew with its transactional id, which ends it, and looks at what is claimed then.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

from kraftpy.client.ledger import Dues, Ledger
from kraftpy.client.spans import contains
from kraftpy.core.coordination import Effects
from kraftpy.core.groups import GroupMachine
from kraftpy.core.transactions import VERSION_2, Answer, Wish
from kraftpy.protocol import messages
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.extensions import SLICES_TAG
from tests.simulation.claims import SESSION_MS, commit_in_transaction
from tests.simulation.clients import CLIENT, RETRY_MS, TIMEOUT_MS, Client
from tests.simulation.members import DONE, Shared, claims_of, encode_dues
from tests.simulation.replica import Name
from tests.simulation.transactions import (
    STATE_PARTITION,
    Question,
    at_coordinator,
)

if TYPE_CHECKING:
    from tests.simulation.cooperative_world import CooperativeWorld

_COMMITTED = 0.75
_WRITING_MS = 80.0
# Others get the slices of who dies before that is over.
_TRANSACTION_MS = 4 * SESSION_MS
_TRIES = 5
_NONE = (-1, -1)

Ask = Callable[[Callable[[Any], None]], None]
Steps = Generator[Ask, Any, Any]
Due = dict[Name, tuple[Ledger, Dues]]


class Transacting(Shared):
    """A member of a group that shares partitions and claims in transactions."""

    def __init__(self, world: CooperativeWorld, group_id: str, number: int, assignor: str) -> None:
        super().__init__(world, group_id, number, assignor)
        self._states = Client(world, STATE_PARTITION)
        self._identity = f"member-{number}", VERSION_2

    def _forget(self) -> None:
        super()._forget()
        self._producer = _NONE
        self._unsure = False
        self._then: list[Callable[[], None]] = []
        self._values: dict[Name, dict[int, object]] = {}

    def _done(self, name: Name, ledger: Ledger, offset: int, value: object) -> None:
        if self.ledgers.get(name) is ledger and ledger.done(offset):
            self._values.setdefault(name, {})[offset] = value

    # -- steps

    def commit_done(self, then: Callable[[], None]) -> None:
        self._then.append(then)
        if not self._committing:
            self._committing = True
            self._go_on(self._commit(), None)

    def _go_on(self, steps: Steps, said: Any) -> None:
        """Takes the next step; each asks one thing, and goes on with the answer, or None."""
        try:
            ask = steps.send(said)
        except StopIteration:
            return
        waits = [True]

        def answered(said: Any) -> None:
            if waits:
                waits.clear()
                self._go_on(steps, said)

        ask(answered)
        self.world.schedule.after(TIMEOUT_MS, self.run, self.life, answered, None)

    def _commit(self) -> Steps:
        while self._then:
            then, self._then = self._then, []
            if self._dues() and (self._producer != _NONE or (yield from self._begin_anew())):
                dues = self._dues()
                if dues:
                    yield from self._transact(dues)
            for each in then:
                each()
        self._committing = False

    def _dues(self) -> Due:
        dues = {name: (each, each.dues()) for name, each in sorted(self.ledgers.items())}
        return {name: each for name, each in dues.items() if each[1].accounts}

    def _begin_anew(self) -> Steps:
        """Whether the transactional id is this process's now, and all is over that it had begun."""
        wish = Wish(_TRANSACTION_MS, None)
        answer = yield from self._ask_states(
            lambda machine, token, now_ms: machine.init_producer_id(
                token, self._identity[0], wish, now_ms
            )
        )
        if answer is None or answer.error:
            return False
        self._take(answer)
        if self._unsure:
            self._look_again()
        return True

    def _take(self, answer: Answer) -> None:
        self._producer = answer.producer_id, answer.producer_epoch
        self.world.transactions.of_version_2.add(answer.producer_id)

    def _transact(self, dues: Due) -> Steps:
        error = yield partial(self._claim_in, dues)
        if error is not None and error not in DONE:
            self.refused(error)
        is_commit = error in DONE
        if self.world.producing:
            is_commit = is_commit and self.world.rng.random() < _COMMITTED
            yield lambda answered: self.after(_WRITING_MS, answered, None)
        if is_commit:
            for name, (_, its) in dues.items():
                self._processed(name, its)
        producer = self._producer
        answer = yield from self._ask_states(
            lambda machine, token, now_ms: machine.end(
                token, self._identity[0], producer, VERSION_2, now_ms, is_commit=is_commit
            )
        )
        if answer is None or answer.error:
            self._producer, self._unsure = _NONE, True
            return
        self._take(answer)
        if not is_commit:
            self._look_again()
            return
        for ledger, its in dues.values():
            ledger.answered(its, -1)

    def _processed(self, name: Name, dues: Dues) -> None:
        for offset, value in self._values.get(name, {}).items():
            hash_ = self.world.hash_of(value)
            for due in dues.accounts:
                if contains(due.slices, hash_) and any(a <= offset <= b for a, b in due.ranges):
                    self.world.cooperative.processed(self, value)

    def _look_again(self) -> None:
        """What isn't claimed comes again, once nothing is open any more."""
        self._unsure = False
        self._values.clear()
        self.ledgers.clear()
        self.unlocated.update(self.slices)

    # -- asking

    def _claim_in(self, dues: Due, answered: Callable[[Any], None]) -> None:
        """A TxnOffsetCommit, of which the worst error is heard."""
        kinds = messages.TxnOffsetCommitRequest
        names, producer = list(dues), self._producer
        request = kinds(
            transactional_id=self._identity[0],
            group_id=self.group_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            generation_id=self.generation,
            member_id=self.member_id,
            topics=[
                kinds.TxnOffsetCommitRequestTopic(
                    self.world.DATA,
                    [
                        kinds.TxnOffsetCommitRequestPartition(
                            name[1], -1, _tags={SLICES_TAG: encode_dues(dues[name][1])}
                        )
                        for name in names
                    ],
                )
            ],
        )
        partitions = range(self.world.config.partitions)
        checks = self.world.cooperative

        def act(machine: GroupMachine, token: Any, now_ms: int) -> Effects[Any]:
            def reply(response: Any) -> None:
                codes = [ErrorCode(each.error_code) for each in response.topics[0].partitions]
                for name, code in zip(names, codes, strict=True):
                    if code in DONE:
                        place = self.group_id, name
                        checks.pending.told(producer[0], place, claims_of(dues[name][1]))
                token(next((code for code in codes if code not in DONE), ErrorCode.NONE))

            return machine.commit_in_transaction(reply, request, lambda _: partitions, now_ms)

        arrive = partial(commit_in_transaction, self._identity, producer)
        self.ask(act, answered, at=arrive)

    def _ask_states(self, question: Question) -> Steps:
        """What the coordinator of transactions says, or None."""
        for _ in range(_TRIES):
            answer = yield partial(self._ask_once, question)
            if answer is not None and not answer.error.retriable:
                return answer
            yield lambda answered: self.after(RETRY_MS, answered, None)
        return None

    def _ask_once(self, question: Question, answered: Callable[[Any], None]) -> None:
        leader, life = self._states.find_leader(), self.life
        if leader is None:
            return
        network = self.world.network

        def answer(said: Answer | None) -> None:
            network.send(leader.id, CLIENT, self.run, life, answered, said)

        network.to_broker(CLIENT, leader, at_coordinator, leader, question, answer)
