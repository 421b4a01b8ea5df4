"""What there is to administer a cluster by: the classes of `kraftpy.client` and their methods.

They are looked for, not listed: with the next `make docs` docs/admin.md has one that is added.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module

from kraftpy import client
from kraftpy.client import Admin


def classes() -> list[type[Admin]]:
    """Those that the client has, exported or not; each behind what it is made of."""
    for module in pkgutil.iter_modules(client.__path__):
        import_module(f"{client.__name__}.{module.name}")
    found: list[type[Admin]] = [Admin]
    for each in found:
        found += sorted(each.__subclasses__(), key=lambda known: known.__name__)
    return [each for each in found if each.__module__.startswith(f"{client.__name__}.")]


def methods(kind: type[Admin]) -> list[str]:
    """The public methods that a class has of its own, in their order."""
    return [
        name
        for name, found in vars(kind).items()
        if inspect.isfunction(found) and not name.startswith("_")
    ]


def rows(kind: type[Admin]) -> Iterator[list[str]]:
    """For each method what it takes, without types, and the first sentence of its docstring."""
    for name in methods(kind):
        method = getattr(kind, name)
        _, *taken = inspect.signature(method).parameters.values()
        plain = [each.replace(annotation=inspect.Parameter.empty) for each in taken]
        yield [f"`{name}{inspect.Signature(plain)}`", sentence(method)]


def sentence(described: object) -> str:
    """The first one of a docstring, which there has to be."""
    text = " ".join((inspect.getdoc(described) or "").split())
    assert text, f"{described} has no docstring"
    return re.split(r"(?<=\.) ", text)[0].replace("|", "\\|")
