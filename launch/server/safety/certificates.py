"""Checks the certificate and the key of an HTTPS server before a model is loaded."""

from __future__ import annotations

import ssl
from pathlib import Path


def check_certificate(certificate: str | None, key: str | None) -> None:
    """certificate, key: PEM files, or None for plain HTTP. Raises ValueError for files that do not serve."""
    if certificate is None or key is None:
        return
    for name, file in (("tls_certificate", certificate), ("tls_key", key)):
        if not Path(file).is_file():
            raise ValueError(f"server.{name}={file} is not a file")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or error.strerror or str(error)
        raise ValueError(
            f"server.tls_certificate={certificate} and server.tls_key={key} cannot be used together: {reason}"
        ) from None
