"""The server's certificate: read at the start, and again when it is renewed, while connections stay open."""

import asyncio
import logging
import ssl
from pathlib import Path

from pydantic import SecretStr

from vivavoce_server.config import ServerConfig
from vivavoce_server.setting_sources import SettingError, flag_of

log = logging.getLogger(__name__)

WATCH_S = 5.0
"""Seconds between two looks at the files."""
Signature = tuple[tuple[int, int, int], ...]


class Certificate:
    """The TLS context of new connections. Those that are open keep the one that they began with."""

    def __init__(self, config: ServerConfig) -> None:
        """Reads the files. Raises SettingError if they cannot be used."""
        self._config = config
        self._signature = self._look()
        self.context = read_context(config)

    @staticmethod
    def of(config: ServerConfig) -> "Certificate | None":
        """The certificate that the settings name, or None for a server without TLS. Raises SettingError."""
        if config.ssl_certfile is not None:
            return Certificate(config)
        for name in ("ssl_keyfile", "ssl_keyfile_password", "ssl_ca_certs"):
            if getattr(config, name) is not None:
                raise SettingError(f"{flag_of(name)}: there is no certificate for it; set --ssl-certfile too")
        return None

    def reload(self) -> None:
        """Reads the files again. If they cannot be used, the certificate before stays, and the log says so."""
        self._signature = self._look()
        try:
            self.context = read_context(self._config)
        except SettingError as error:
            log.error("the certificate was not reloaded, the old one stays: %s", error)
        else:
            log.info("reloaded the certificate of %s", self._config.ssl_certfile)

    async def watch(self) -> None:
        """Reloads the files whenever they change, until it is cancelled."""
        while True:
            await asyncio.sleep(WATCH_S)
            if self._look() != self._signature:
                self.reload()

    def _look(self) -> Signature:
        """Changes when one of the files does."""
        return tuple(map(_signature_of, files_of(self._config).values()))


def _signature_of(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_ino, found.st_mtime_ns, found.st_size)


def files_of(config: ServerConfig) -> dict[str, Path]:
    """Setting → file, of those that are set."""
    names = ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs")
    return {name: path for name in names if (path := getattr(config, name)) is not None}


def read_context(config: ServerConfig) -> ssl.SSLContext:
    """A context of the files as they are now. Raises SettingError, which names the file that cannot be used."""
    for name, path in files_of(config).items():
        try:
            if not path.is_file() and path.exists():
                raise SettingError(f"{flag_of(name)}: {path} is no regular file")
            path.open("rb").close()
        except OSError as error:
            raise SettingError(f"{flag_of(name)}: {path} cannot be read: {error.strerror}") from None
    certificate, key = config.ssl_certfile, config.ssl_keyfile
    assert certificate is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_RENEGOTIATION
    password = _Password(config.ssl_keyfile_password)
    try:
        context.load_cert_chain(certificate, key, password)
    except SettingError:
        raise
    except (ssl.SSLError, ValueError) as error:  # ValueError: the password is too long for OpenSSL
        if password.was_asked:
            raise SettingError(f"--ssl-keyfile-password: it is not that of {key or certificate}") from None
        raise SettingError(f"--ssl-certfile: {_told(error, certificate, key)}") from None
    if config.ssl_ca_certs is not None:
        try:
            context.load_verify_locations(config.ssl_ca_certs)
        except ssl.SSLError:
            raise SettingError(f"--ssl-ca-certs: {config.ssl_ca_certs} holds no certificate") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class _Password:
    """Answers OpenSSL's question for the password of the key. Without it, OpenSSL would ask on the terminal."""

    def __init__(self, password: SecretStr | None) -> None:
        self._password = password
        self.was_asked = False

    def __call__(self) -> str:
        self.was_asked = True
        if self._password is None:
            raise SettingError("--ssl-keyfile: the key is encrypted; give its password by --ssl-keyfile-password")
        return self._password.get_secret_value()


def _told(error: Exception, certificate: Path, key: Path | None) -> str:
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return f"the key in {key or certificate} is not that of {certificate}"
    if key is None:
        return f"{certificate} holds no certificate and key in PEM form; give the key's own file by --ssl-keyfile"
    return f"{certificate} and {key} hold no certificate and key in PEM form"
