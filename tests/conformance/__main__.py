"""`make conformance`: the suite against a server of its own on the shipped voice, without keys and with one."""

import argparse
import sys
import tempfile
from pathlib import Path

from vivavoce_conformance import cli

from tests.support.server_process import serving

KEY = "conformance-0123456789"
OF_KEYS = "requests.plain,models,security,sockets"
"""Checks that a key makes a difference to."""
TIMEOUT_S = "120"
"""Limit of a request. A machine that runs other things too may take ten times as long as usual."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make conformance")
    parser.add_argument("--model", help="checkpoint to serve; by default the shipped voice")
    served = parser.parse_args().model
    flags = ["--model", served] if served else []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        keys = folder / "keys.toml"
        keys.write_text(f'[conformance]\nkey = "{KEY}"\n', encoding="utf-8")
        keys.chmod(0o600)
        with serving(folder, *flags) as (_, url):
            status = check(url)
        (folder / "address").unlink()
        with serving(folder, *flags, "--api-keys-file", str(keys)) as (_, url):
            return check(url, "--key", KEY, "--only", OF_KEYS) or status


def check(url: str, *arguments: str) -> int:
    """Runs the suite. Returns its exit status, which is 0 if all musts and shoulds hold."""
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    return cli.run(parser.parse_args([url, "--server", "vivavoce", "--strict", "--timeout-s", TIMEOUT_S, *arguments]))


if __name__ == "__main__":
    sys.exit(main())
