"""How a request is let through to its handler as far as its client's rights go.

A guard stands before the handler of an API where there is an authorizer, and isn't there at all
otherwise: `guarded` makes the table of a broker that has one. Rules:

* What is denied never gets to the handler, and its answer is made of the request alone: nobody can
  tell whether it exists.
* A guard is a generator, which yields where a request of many elements may be interrupted. It takes
  what is denied out of the request and returns None to let the rest through, an answer to be given
  in the handler's place, or `Then`: what is to be done with the handler's answer.
* APIs that take one right on the cluster have it in `@handles(..., cluster=...)`; their guards are
  made here. What only a handler can know (all topics, all groups) it leaves out itself, by
  `ctx.session.view`, which is None without an authorizer.
* What a request was allowed for is noted where commands come of it (`rights`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from kraftpy.core.security.acls import CLUSTER_NAME, Operation, Resource
from kraftpy.core.security.authorizer import View
from kraftpy.frozen import NamedTuple
from kraftpy.protocol import messages
from kraftpy.protocol.api import RESPONSE_NAMES, ApiKey
from kraftpy.protocol.elements import elements
from kraftpy.protocol.errors import ErrorCode
from kraftpy.server.handlers.registry import cluster_rights
from kraftpy.server.handlers.rights import note_need
from kraftpy.server.network.dispatch import Handler, HandlerSpec, RequestContext
from kraftpy.server.network.long_answers import at_once, in_slices

if TYPE_CHECKING:
    from kraftpy.server.broker import Broker

T = TypeVar("T")

CLUSTER_DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
GROUP_DENIED = ErrorCode.GROUP_AUTHORIZATION_FAILED
TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
TRANSACTION_DENIED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class Check:
    """What the client of one request may do."""

    __slots__ = ("broker", "ctx", "view")

    def __init__(self, broker: Broker, ctx: RequestContext, view: View) -> None:
        self.broker = broker
        self.ctx = ctx
        self.view = view

    def may(self, operation: int, resource_type: int, name: str) -> bool:
        """Whether it may; what it mayn't is in the audit log."""
        if self.view.mask(resource_type, name) & 1 << operation:
            return True
        self.broker.audit.denied(self.view, operation, resource_type, name)
        return False

    def topic(self, operation: int, name: str) -> bool:
        """The same of a topic."""
        return self.may(operation, Resource.TOPIC, name)

    def group(self, operation: int, name: str) -> bool:
        """The same of a group."""
        return self.may(operation, Resource.GROUP, name)

    def transaction(self, operation: int, name: str) -> bool:
        """The same of a transactional id."""
        return self.may(operation, Resource.TRANSACTIONAL_ID, name)

    def cluster(self, *operations: int) -> bool:
        """Whether any of these may be done with the cluster."""
        if any(self.view.may_cluster(operation) for operation in operations):
            return True
        return self.may(operations[-1], Resource.CLUSTER, CLUSTER_NAME)

    def need(self, operation: int, resource_type: int, name: str) -> bool:
        """As `may`, and what is allowed is what the request's commands rest on."""
        if not self.may(operation, resource_type, name):
            return False
        note_need(self.ctx, (operation, resource_type, name))
        return True

    def need_cluster(self, operation: int) -> bool:
        """The same of the cluster."""
        return self.need(operation, Resource.CLUSTER, CLUSTER_NAME)

    def split(
        self,
        operation: int,
        resource_type: int,
        items: Sequence[T],
        name_of: Callable[[T], str],
        *,
        needed: bool = False,
    ) -> Generator[None, None, tuple[list[T], list[T]]]:
        """The items that it may do this with, and the others."""
        allowed: list[T] = []
        denied: list[T] = []
        mask, right = self.view.mask, 1 << operation
        for item in items:
            name = name_of(item)
            if not mask(resource_type, name) & right:
                self.may(operation, resource_type, name)  # which tells of it
                denied.append(item)
            else:
                if needed:
                    note_need(self.ctx, (operation, resource_type, name))
                allowed.append(item)
            yield
        return allowed, denied

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of the topic with the id, if there is one: ids are no secret."""
        topic = self.broker.metadata.topics_by_id.get(topic_id)
        return None if topic is None else topic.name


class Then(NamedTuple):
    """What is to be done with the handler's answer, which is what it returns."""

    work: Callable[[Any], Any]


Guard = Callable[[Check, Any], Generator[None, None, Any]]

_guards: dict[ApiKey, tuple[str, Guard]] = {}
_open: dict[ApiKey, str] = {}
_denials: dict[ApiKey, Callable[[Any], Any]] = {}


def guards(*keys: ApiKey, rights: str) -> Callable[[Guard], Guard]:
    """Registers the decorated generator as the guard of APIs; `rights` is for docs/security.md."""

    def register(guard: Guard) -> Guard:
        for key in keys:
            assert key not in _guards
            _guards[key] = rights, guard
        return guard

    return register


def deny_heartbeat(check: Check, request: Any, kind: Any) -> Generator[None, None, Any]:
    """A member's: the group, then all topics that are named; the answer is of that `kind`."""
    error = ErrorCode.NONE
    if not check.group(Operation.READ, request.group_id):
        error = GROUP_DENIED
    else:
        for name in request.subscribed_topic_names or ():
            yield
            if not check.topic(Operation.DESCRIBE, name):
                error = TOPIC_DENIED
                break
    if error is ErrorCode.NONE:
        return None
    return kind(error_code=error, error_message=error.message)


def deny_described(check: Check, request: Any, kind: Any) -> Generator[None, None, Any]:
    """Groups of whatever type, each by itself; what is told of one is of that `kind`."""
    request.group_ids, denied = yield from check.split(
        Operation.DESCRIBE, Resource.GROUP, request.group_ids, lambda name: name
    )
    if not denied:
        return None
    return adding(
        "groups",
        elements(
            list(dict.fromkeys(denied)),
            lambda name: kind(
                error_code=GROUP_DENIED, error_message=GROUP_DENIED.message, group_id=name
            ),
        ),
    )


def leaves_open(key: ApiKey, why: str) -> None:
    """Notes an API that takes no rights, or whose handler looks at them itself."""
    _open[key] = why


def denies(key: ApiKey) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Registers what makes the answer to who lacks the right on the cluster, of the request."""

    def register(deny: Callable[[Any], Any]) -> Callable[[Any], Any]:
        _denials[key] = deny
        return deny

    return register


def rights() -> dict[ApiKey, str]:
    """What each API takes, in words: the table of docs/security.md."""
    found = {key: text for key, (text, _) in _guards.items()} | _open
    for key, operation in cluster_rights.items():
        found[key] = f"Cluster {Operation(operation).name}"
    return dict(sorted(found.items()))


def view_of(broker: Broker, ctx: RequestContext) -> View:
    """What the connection's client may do."""
    session = ctx.session
    view = session.view
    if view is None or view.principal != session.principal:
        assert broker.authorizer is not None
        view = session.view = broker.authorizer.view(session.principal, session.host)
    return view


def guarded(table: Mapping[ApiKey, HandlerSpec]) -> dict[ApiKey, HandlerSpec]:
    """The handlers behind their guards. Raises KeyError for one that has none."""
    found: dict[ApiKey, HandlerSpec] = {}
    for key, spec in table.items():
        if key in cluster_rights:
            guard = _cluster_guard(key, cluster_rights[key])
        elif key in _open:
            guard = _nothing
        else:
            _, guard = _guards[key]
        found[key] = HandlerSpec(_behind(guard, spec.function), spec.concurrent, spec.long)
    return found


def _behind(guard: Guard, handler: Handler) -> Handler:
    def handle(broker: Broker, ctx: RequestContext, request: Any) -> Any:
        work = guard(Check(broker, ctx, view_of(broker, ctx)), request)
        if ctx.many:
            return later(broker, ctx, request, work)
        outcome = at_once(work)
        if outcome is None:
            return handler(broker, ctx, request)
        if type(outcome) is not Then:
            return outcome
        answer = handler(broker, ctx, request)
        if isinstance(answer, Awaitable):
            return finished(answer, outcome)
        return outcome.work(answer)

    async def later(
        broker: Broker, ctx: RequestContext, request: Any, work: Generator[None, None, Any]
    ) -> Any:
        outcome = await in_slices(work)
        if outcome is not None and type(outcome) is not Then:
            return outcome
        answer = handler(broker, ctx, request)
        if isinstance(answer, Awaitable):
            answer = await answer
        return answer if outcome is None else outcome.work(answer)

    async def finished(answer: Awaitable[Any], then: Then) -> Any:
        return then.work(await answer)

    return handle


def _nothing(_check: Check, _request: Any) -> Generator[None, None, None]:
    return None
    yield


def _cluster_guard(key: ApiKey, operation: int) -> Guard:
    response_class = getattr(messages, RESPONSE_NAMES[key])

    def guard(check: Check, request: Any) -> Generator[None, None, Any]:
        if check.need_cluster(operation):
            return None
        deny = _denials.get(key)
        if deny is not None:
            return deny(request)
        response = response_class(error_code=CLUSTER_DENIED)
        if hasattr(response, "error_message"):
            response.error_message = CLUSTER_DENIED.message
        return response
        yield

    return guard


# -- answers


class _Joined:
    """An answer's array, with what was denied behind it."""

    __slots__ = ("_denied", "_given")

    def __init__(self, given: Sequence[Any], denied: Sequence[Any]) -> None:
        self._given = given
        self._denied = denied

    def __len__(self) -> int:
        return len(self._given) + len(self._denied)

    def __iter__(self) -> Iterator[Any]:
        return chain(self._given, self._denied)

    def __getitem__(self, place: Any) -> Any:
        return list(self)[place]


def joined(given: Any, denied: Any) -> Any:
    """`given` with `denied` behind it; neither has to be made yet."""
    if type(given) is list and type(denied) is list:
        return given + denied
    return _Joined(given, denied)


def adding(field: str, denied: Any) -> Then:
    """Puts what was denied behind what the handler answered in this field."""

    def work(response: Any) -> Any:
        setattr(response, field, joined(getattr(response, field), denied))
        return response

    return Then(work)
