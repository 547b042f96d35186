"""TLS over sockets that never block: what the wire brings goes in, plain text comes out, and the other way round."""

import contextlib
import ssl
from collections.abc import Iterable, Iterator

from harness.errors import ConfigError
from harness.traffic.wire.endpoint import Endpoint

RECORD_BYTES = 16 * 1024
"""The most plain text that one record holds."""


def tls_context(endpoint: Endpoint) -> ssl.SSLContext:
    """What to trust.

    Raises
    ------
    ConfigError
        When the CA file holds no certificates.
    """
    try:
        context = ssl.create_default_context(cafile=endpoint.ca_file)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"ca_file: {endpoint.ca_file} can't be read as PEM certificates: {error}") from error
    context.set_alpn_protocols(["http/1.1"])
    if not endpoint.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class Tls:
    """One connection's encryption."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._from_wire, self._to_wire = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._from_wire, self._to_wire, server_hostname=host)

    def handshake(self, data: bytes) -> bool:
        """Go on with `data` from the wire; True when it is done. Raises SSLError."""
        self._from_wire.write(data)
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def encrypted(self) -> bytes:
        """What has to go to the wire."""
        return self._to_wire.read()

    def encrypt(self, pieces: Iterable[bytes]) -> None:
        """Put plain text in."""
        for piece in pieces:
            if piece:
                self._object.write(piece)

    def decrypt(self, data: bytes) -> Iterator[bytes]:
        """The plain text in `data` from the wire, record by record; an empty one is the other side's end.

        Raises SSLError.
        """
        self._from_wire.write(data)
        with contextlib.suppress(ssl.SSLWantReadError):
            while True:
                try:
                    yield self._object.read(RECORD_BYTES)
                except ssl.SSLZeroReturnError:
                    yield b""
                    return
