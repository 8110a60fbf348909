"""This project's own server keeps all musts and shoulds."""

import asyncio
from pathlib import Path

import pytest
from pydantic import SecretStr
from vivavoce_conformance.checks import CHECKS
from vivavoce_conformance.cli import chosen
from vivavoce_conformance.dialects import DIALECTS
from vivavoce_conformance.runner import run_suite
from vivavoce_conformance.target import Target
from vivavoce_server import ServerConfig

from tests.support.conformance_checks import NEED_KEY
from tests.support.live_server import fake_engine, live_server

pytestmark = pytest.mark.long

KEY = "sk-own-0123456789"
STEP_S = 0.004
"""A step of the fake engine takes as long as a fast card's, so that streaming can be told."""
NOT_WITH_A_KEY = {
    "requests.empty_bearer",
    "security.foreign_page_reads",
    "security.foreign_page_speaks",
    "security.foreign_host",
    "sockets.foreign_page",
}


@pytest.mark.parametrize("key", [None, KEY])
def test_all_rules_hold(key: str | None) -> None:
    config = ServerConfig(api_keys=(SecretStr(key),)) if key else ServerConfig()
    with live_server(fake_engine(step_s=STEP_S), config) as server:
        target = Target(f"{server.url}/v1", "tts-1", "alloy", key, 60.0, DIALECTS["vivavoce"])
        findings = asyncio.run(run_suite(target, CHECKS, 1800.0, lambda finding: None))
    assert [(one.check.id, one.reason) for one in findings if one.outcome == "failed"] == []
    skipped = {one.check.id for one in findings if one.outcome == "skipped" and one.check.group != "voices"}
    assert skipped == (NOT_WITH_A_KEY if key else NEED_KEY)


def test_rules_about_files_hold_with_marks_and_from_the_cache(tmp_path: Path) -> None:
    config = ServerConfig(mark_audio="metadata", cache_dir=tmp_path, default_seed=1)
    with live_server(fake_engine(), config) as server:
        target = Target(f"{server.url}/v1", "tts-1", "alloy", None, 60.0, DIALECTS["vivavoce"])
        findings = asyncio.run(run_suite(target, chosen(["formats"]), 1800.0, lambda finding: None))
    assert [(one.check.id, one.reason) for one in findings if one.outcome != "passed"] == []
