"""The certificate, looked at before anything heavy is loaded, and taken anew when it has been renewed."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from service.errors import StartError
from service.settings import Settings

log = logging.getLogger(__name__)


class Certificate:
    """The files of a certificate and its key; the key may be in the certificate's own file."""

    def __init__(self, certificate: Path, key: Path | None) -> None:
        self.certificate = certificate
        self.key = key

    def check(self) -> None:
        """Raises StartError, saying which file is wrong, when a server could not use them."""
        self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

    def renew(self, context: ssl.SSLContext) -> None:
        """Use what the files hold now for new connections. Files that cannot be used change nothing."""
        try:
            self.check()
            self._load(context)
        except StartError as exc:
            log.error("the certificate stays as it was: %s", exc)
        else:
            log.info("certificate read from %s", self.certificate)

    def _load(self, context: ssl.SSLContext) -> None:
        for path in filter(None, (self.certificate, self.key)):
            try:
                path.open("rb").close()
            except OSError as exc:
                raise StartError(
                    f"{path}: {exc.strerror}; TLS needs a PEM file there that can be read."
                ) from None
        try:
            context.load_cert_chain(self.certificate, self.key, _no_password)
        except (ssl.SSLError, ValueError) as exc:
            raise StartError(
                f"{self.certificate} and {self.key or 'the key in it'} cannot be used for TLS "
                f"({_reason(exc)}). They must be a PEM certificate chain and its own key, not encrypted."
            ) from None


def certificate_of(settings: Settings) -> Certificate | None:
    """The certificate that the settings name, if any."""
    return (
        None if settings.tls_cert_file is None else Certificate(settings.tls_cert_file, settings.tls_key_file)
    )


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _reason(exc: Exception) -> str:
    known = isinstance(exc, ssl.SSLError) and exc.reason
    return str(known).replace("_", " ").lower() if known else str(exc)
