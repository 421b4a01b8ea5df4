"""Whether what broken builds replace is called as it was: `python -m tests.consistency.fitting`.

A build whose replacement doesn't fit its call any more fails where it's called: nothing is served
then, nothing is found, and `make broken` has been in vain.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

from .broken import BUILDS


def functions() -> dict[str, Callable[..., Any]]:
    """Functions and methods of the modules of kraftpy that are imported, by their names."""
    return {
        f"{module}.{name}": found
        for module, content in list(sys.modules.items())
        if module.startswith("kraftpy.")
        for name, found in _functions_of(vars(content), module)
    }


def _functions_of(content: dict[str, Any], module: str) -> Iterator[tuple[str, Any]]:
    for name, each in list(content.items()):
        if isinstance(each, FunctionType):
            yield name, each
        elif isinstance(each, type) and each.__module__ == module:
            for method, function in list(vars(each).items()):
                inner = getattr(function, "__func__", getattr(function, "fget", function))
                if isinstance(inner, FunctionType):
                    yield f"{name}.{method}", inner


def misfits() -> dict[str, list[str]]:
    """By each build: what it replaces with something that can't be called like that."""
    sound = before = functions()
    found = {}
    for name, build in BUILDS.items():
        build()
        now = functions()
        sound = {**now, **sound}  # a build may import more
        replaced = [each for each in now if each in before and now[each] is not before[each]]
        found[name] = [each for each in replaced if not fits(now[each], sound[each])]
        if not replaced:
            found[name].append("nothing is replaced")
        before = now
    return found


def fits(now: Callable[..., Any], before: Callable[..., Any]) -> bool:
    """Whether what could be said to the one before can be said to this one."""
    parameters = inspect.signature(before).parameters.values()
    positional = [
        each.default is inspect.Parameter.empty
        for each in parameters
        if each.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    ]
    named = {
        each.name: each.default is inspect.Parameter.empty
        for each in parameters
        if each.kind is inspect.Parameter.KEYWORD_ONLY
    }
    signature = inspect.signature(now)
    try:
        signature.bind(*filter(None, positional), **{name: 1 for name in named if named[name]})
        signature.bind(*positional, **dict.fromkeys(named))
    except TypeError:
        return False
    return True


if __name__ == "__main__":
    print(json.dumps(misfits()))
