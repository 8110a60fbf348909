"""Each check passes on a correct server, and finds the fault that is planted for it; other musts stay as they are."""

import asyncio
from collections.abc import Sequence

import pytest
from vivavoce_conformance.checks import CHECKS
from vivavoce_conformance.dialects import DIALECTS
from vivavoce_conformance.rules import Check, Finding
from vivavoce_conformance.runner import run_suite
from vivavoce_conformance.target import Target

from tests.support.conformance_checks import NEED_KEY
from tests.support.faulty_server import KEY, faulty_server

TIMEOUT_S = 20.0
IDS = [check.id for check in CHECKS]
SLOW = {
    "cancelling.leaving",
    "cancelling.leaving_early",
    "errors.large",
    "requests.input_longest",
    "security.many_fields",
    "streaming.mp3",
    "streaming.pcm",
}
"""Checks of a second or so. They run beside the faults of their own group alone."""
ALSO_BROKEN = {
    "requests.speed_range": {"errors.not_a_number"},  # an infinite speed is above 4
    "requests.voice_unknown": {"security.voice_path"},  # a path is an unknown voice
    "formats.wav": {"formats.pcm_rate", "streaming.sse_audio"},  # both read a WAV
    "formats.pcm_rate": {"formats.wav", "streaming.sse_audio"},
}
"""Fault → other musts that are broken by the same behaviour."""


def run(checks: Sequence[Check], fault: str | None, key: str | None = None) -> dict[str, Finding]:
    with faulty_server(fault, key) as url:
        target = Target(f"{url}/v1", "gpt-4o-mini-tts", "alloy", key, TIMEOUT_S, DIALECTS["vivavoce"])
        findings = asyncio.run(run_suite(target, checks, 600.0, lambda finding: None))
    return {finding.check.id: finding for finding in findings}


def not_passed(findings: dict[str, Finding]) -> dict[str, tuple[str, str]]:
    return {name: (one.outcome, one.reason) for name, one in findings.items() if one.outcome != "passed"}


@pytest.mark.parametrize("key", [None, KEY])
def test_a_correct_server_passes_every_check(key: str | None) -> None:
    skipped = {name for name, (outcome, _) in not_passed(run(CHECKS, None, key)).items()}
    of_pages = {"requests.empty_bearer", "security.foreign_page_reads", "security.foreign_page_speaks"}
    assert skipped == (of_pages | {"security.foreign_host", "sockets.foreign_page"} if key else NEED_KEY)


@pytest.mark.parametrize("fault", IDS)
def test_a_planted_fault_is_found_by_its_check_alone(fault: str) -> None:
    group = fault.partition(".")[0]
    musts = [check for check in CHECKS if check.level == "must" and (check.group == group or check.id not in SLOW)]
    checks = [check for check in CHECKS if check in musts or check.id == fault]
    findings = run(checks, fault, KEY if fault in NEED_KEY else None)
    assert findings[fault].outcome == "failed"
    assert findings[fault].reason
    others = {name for name, one in findings.items() if one.outcome == "failed"} - {fault}
    assert others == ALSO_BROKEN.get(fault, set()), not_passed(findings)
