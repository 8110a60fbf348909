"""Certificates that sign themselves, made by the program openssl."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.programs import path_of


@dataclass(frozen=True)
class Pair:
    certificate: Path
    key: Path


def make_pair(folder: Path, name: str, password: str | None = None) -> Pair:
    """A new certificate of 127.0.0.1 and localhost, whose subject is the name, and its key."""
    pair = Pair(folder / f"{name}.crt", folder / f"{name}.key")
    command = [path_of("openssl"), "req", "-x509", "-days", "2", "-subj", f"/CN={name}"]
    command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", str(pair.key)]
    command += ["-passout", f"pass:{password}"] if password else ["-nodes"]
    subprocess.run([*command, "-out", str(pair.certificate)], check=True, capture_output=True)
    return pair
