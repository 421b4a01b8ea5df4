"""Why a connection with TLS has failed, in words for a log."""

from __future__ import annotations

import ssl


def why(error: ssl.SSLError) -> str:
    """What went wrong, in OpenSSL's words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: the peer's certificate isn't accepted: {error.verify_message}"
    reason = (error.reason or str(error)).lower().replace("_", " ")
    return f"TLS: {reason}"
