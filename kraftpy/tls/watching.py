"""A context that follows its files, and its settings.

Rules: what can't be loaded, doesn't match or has expired leaves what was there before. A file that
is written while it is read looks changed the next time, whatever was read. An attempt isn't made
again before files or settings change, so its error is told once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kraftpy.tls.contexts import Loaded
from kraftpy.tls.settings import TlsError, TlsSettings

_Stamp = tuple[int, int, int, int] | None


class Watched:
    """What `make` made of settings, the newest that could be used."""

    def __init__(self, settings: TlsSettings, make: Callable[[TlsSettings], Loaded]) -> None:
        self._make = make
        self._tried = (settings, _stamps(settings))
        self.loaded = make(settings)

    def look(self, settings: TlsSettings, now_s: float, *, anyhow: bool = False) -> Loaded | None:
        """What is new, if something is; `anyhow`: even if nothing seems to have changed.

        Raises TlsError if it can't be used.
        """
        found = (settings, _stamps(settings))
        if found == self._tried and not anyhow:
            return None
        self._tried = found
        loaded = self._make(settings)
        certificate = loaded.certificate
        if certificate is not None and certificate.not_after_s <= now_s:
            raise TlsError(f"the certificate of {certificate.subject} has expired")
        self.loaded = loaded
        return loaded


def _stamps(settings: TlsSettings) -> tuple[_Stamp, ...]:
    """What tells one state of the files from the next, behind all links."""
    return tuple(_stamp(Path(file)) for file in settings.files)


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
