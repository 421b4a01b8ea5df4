"""What went in and what came out, said in a way that no broker takes part in.

A ledger keeps a running digest per key over the values in the order in which they came, each with
its length. Two ledgers with equal digests saw the same bytes in the same order for every key.
"""

from __future__ import annotations

import hashlib
from typing import Any


class Ledger:
    def __init__(self) -> None:
        self.count = 0
        self.size_bytes = 0
        self._keys: dict[bytes, list[Any]] = {}  # key -> [count, digest]

    def add(self, key: bytes, value: bytes) -> None:
        entry = self._keys.get(key)
        if entry is None:
            entry = self._keys[key] = [0, hashlib.blake2b(digest_size=16)]
        entry[0] += 1
        entry[1].update(len(value).to_bytes(4))
        entry[1].update(value)
        self.count += 1
        self.size_bytes += len(value)

    @property
    def key_count(self) -> int:
        return len(self._keys)

    def differences(self, sent: Ledger) -> list[str]:
        """In words, what this ledger has otherwise than `sent`; empty when all is the same."""
        found = []
        if self.count != sent.count:
            found.append(f"{self.count} events instead of {sent.count}")
        if lost := sent._keys.keys() - self._keys.keys():
            found.append(f"{len(lost)} keys never came, such as {min(lost)!r}")
        if strange := self._keys.keys() - sent._keys.keys():
            found.append(f"{len(strange)} keys were never sent, such as {min(strange)!r}")
        for key, (count, digest) in sorted(sent._keys.items()):
            came = self._keys.get(key)
            if came is not None and came[0] != count:
                found.append(f"key {key!r}: {came[0]} events instead of {count}")
            elif came is not None and came[1].digest() != digest.digest():
                found.append(f"key {key!r}: other bytes, or the same in another order")
        return found
