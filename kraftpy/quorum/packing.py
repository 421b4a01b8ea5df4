"""msgpack with the limits that bytes from outside need; the only (de)serializer of the quorum.

Nothing here can run code: unknown extension types are refused, and there is no pickle.
"""

from __future__ import annotations

from typing import Any

import msgpack


def _refuse_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code} is not used here")


def pack(value: Any) -> bytes:
    """`value` (None, bool, int, float, str, bytes, lists and dicts of them) as msgpack bytes."""
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def unpack(data: bytes | memoryview) -> Any:
    """The value in `data`, which must hold exactly one. Raises `ValueError` on anything else."""
    try:
        return msgpack.unpackb(
            data, raw=False, strict_map_key=False, ext_hook=_refuse_extension, timestamp=0
        )
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ValueError(f"not a msgpack value: {error!r}") from None
