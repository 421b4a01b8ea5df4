"""CRC-32C in hardware: the extension of the package `crc32c`, without the package.

Its `__init__` imports fifty modules for a command line and for its own version, an eighth of what a
node imports. Where the extension isn't found beside it, the package is imported after all.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Any

Crc = Callable[..., int]
"""Takes data and the checksum of what came before, 0 by default."""


def _load() -> Crc:
    package = find_spec("crc32c")  # runs nothing of it
    folders = None if package is None else package.submodule_search_locations
    spec = None if folders is None else PathFinder.find_spec("crc32c._crc32c", list(folders))
    if spec is None or spec.loader is None:
        import crc32c as imported

        return imported.crc32c
    extension: Any = module_from_spec(spec)
    spec.loader.exec_module(extension)
    found: Crc = extension.crc32c
    return found


crc32c = _load()
