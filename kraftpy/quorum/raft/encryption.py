"""pysyncobj's encryption, which is left out: frames go by `quorum.transport`, and by TLS.

Imported before pysyncobj, which would load `cryptography` wherever that is installed: for nothing
2 MiB of each node, and a tenth of what is imported at a start.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import NoReturn


def _refuse(password: str) -> NoReturn:
    raise RuntimeError("kraftpy's quorum does not use pysyncobj's encryption")


def _leave_out() -> None:
    module = ModuleType("pysyncobj.encryptor")
    module.HAS_CRYPTO = False  # type: ignore[attr-defined]
    module.getEncryptor = _refuse  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module


_leave_out()
