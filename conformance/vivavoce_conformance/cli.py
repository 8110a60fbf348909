"""The command `vivavoce conformance URL`: checks any speech server that has OpenAI's speech API."""

import argparse
import asyncio
import io
import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from vivavoce_conformance.checks import CHECKS, GROUPS
from vivavoce_conformance.dialects import DIALECTS
from vivavoce_conformance.reports import as_badge, as_json, as_junit, as_list, as_markdown, line_of, summary
from vivavoce_conformance.rules import Check, Finding
from vivavoce_conformance.runner import run_suite
from vivavoce_conformance.target import Target, printable

KEY_VARIABLE = "OPENAI_API_KEY"
BROKEN, USAGE_ERROR = 1, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Check a speech server against the rules of OpenAI's speech API. The exit status is 1 if a `must` is broken."
    )
    parser.add_argument("url", nargs="?", metavar="URL", help="base URL of the API; /v1 is added if it has no path")
    parser.add_argument("--key", help=f"API key; default: the variable {KEY_VARIABLE}, for https alone")
    parser.add_argument("--model", default="tts-1", help="model of the requests (%(default)s)")
    parser.add_argument("--voice", default="alloy", help="voice of the requests (%(default)s)")
    parser.add_argument(
        "--server", choices=DIALECTS, default="openai", help="kind of server: what its extensions are called"
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="groups or checks to run, comma-separated")
    parser.add_argument("--strict", action="store_true", help="a broken `should` fails the run too")
    parser.add_argument("--timeout-s", type=_seconds, default=30.0, help="limit of one request (%(default)s)")
    parser.add_argument("--total-s", type=_seconds, default=1800.0, help="limit of the whole run (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit's XML")
    parser.add_argument("--badge", type=Path, metavar="FILE", help="write a badge as SVG")
    parser.add_argument("--list", action="store_true", help="list the checks, and ask no server")
    parser.add_argument("--markdown", action="store_true", help="with --list: as tables")


def run(args: argparse.Namespace) -> int:
    """Runs the command. Returns the exit status: 0, 1 for a broken rule, 2 for arguments that cannot be used."""
    try:
        checks = chosen(args.only)
        if args.list:
            sys.stdout.write(as_markdown(GROUPS) if args.markdown else as_list(checks))
            return 0
        target = target_of(args)
    except ValueError as error:
        print(f"vivavoce conformance: {error}", file=sys.stderr)
        return USAGE_ERROR

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # servers send letters that a terminal may not have

    def report(finding: Finding) -> None:
        if not args.json:
            print(line_of(finding), flush=True)

    findings = asyncio.run(run_suite(target, checks, args.total_s, report))
    print(as_json(target, args.server, findings) if args.json else f"\n{summary(findings)}")
    try:
        if args.junit:
            args.junit.write_text(as_junit(findings, args.strict), encoding="utf-8")
        if args.badge:
            args.badge.write_text(as_badge(findings), encoding="utf-8")
    except OSError as error:
        print(f"vivavoce conformance: {error}", file=sys.stderr)
        return USAGE_ERROR
    return BROKEN if any(finding.fails(args.strict) for finding in findings) else 0


def chosen(only: list[str] | None) -> list[Check]:
    """The checks of these groups or ids. Raises ValueError for a name that is neither."""
    if not only:
        return list(CHECKS)
    names = {name.strip() for one in only for name in one.split(",") if name.strip()}
    known = {check.id for check in CHECKS} | {group.name for group in GROUPS}
    if unknown := sorted(names - known):
        raise ValueError(f"no check or group is called {', '.join(unknown)}; --list shows them")
    return [check for check in CHECKS if check.id in names or check.group in names]


def target_of(args: argparse.Namespace) -> Target:
    """The server of the arguments. Raises ValueError for a URL that is none."""
    if not args.url:
        raise ValueError("a URL is missing, such as http://localhost:8000")
    try:
        urlsplit(args.url)  # httpx does not mind half a pair of brackets
        url = httpx.URL(args.url)
    except (httpx.InvalidURL, ValueError) as error:
        raise ValueError(f"{printable(args.url)} is no URL: {error}") from None
    if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment or url.userinfo:
        raise ValueError(f"{printable(args.url)} is no base URL, such as http://localhost:8000 or https://host/v1")
    base = str(url).rstrip("/")
    key = args.key or (os.environ.get(KEY_VARIABLE) if url.scheme == "https" else None) or None
    return Target(
        base if url.path.strip("/") else f"{base}/v1",
        args.model,
        args.voice,
        key,
        args.timeout_s,
        DIALECTS[args.server],
    )


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 86_400:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 86400 seconds")
    return value
