"""A run of checks that ends, whatever the server does."""

import asyncio
from collections.abc import Callable, Sequence

import httpx
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage

from vivavoce_conformance.rules import Check, Finding, Outcome
from vivavoce_conformance.target import CHECK_TIMEOUTS, Failed, Skipped, Target, now, printable

MAX_REASON_CHARS = 500
MAX_SILENT = 3
"""After this many checks in a row without any answer, the others are not run."""


async def run_suite(
    target: Target, checks: Sequence[Check], total_s: float, report: Callable[[Finding], None]
) -> list[Finding]:
    """Runs the checks one after the other, for at most `total_s`, and reports each outcome as it comes.

    Checks that are left then, or because the server answers nothing any more, count as failed.
    """
    findings: list[Finding] = []
    silent = 0
    end_s = now() + total_s
    async with target:
        for check in checks:
            left_s = end_s - now()
            if silent == MAX_SILENT:
                finding = Finding(check, "failed", f"not run: {MAX_SILENT} checks in a row had no answer", 0.0)
            elif left_s <= 0:
                finding = Finding(check, "failed", f"not run: the {total_s:g} s for all checks are over", 0.0)
            else:
                finding, answered = await run_check(target, check, min(left_s, CHECK_TIMEOUTS * target.timeout_s))
                silent = 0 if answered else silent + 1
            findings.append(finding)
            report(finding)
    return findings


async def run_check(target: Target, check: Check, limit_s: float) -> tuple[Finding, bool]:
    """Runs one check. The second value is false if the server was silent or not there."""
    begun_s = now()
    outcome: Outcome = "failed"
    reason, answered = "", True
    try:
        async with asyncio.timeout(limit_s):
            await check.run(target)
        outcome = "passed"
    except Skipped as error:
        outcome, reason = "skipped", str(error)
    except Failed as error:
        reason = str(error)
    except (TimeoutError, httpx.TimeoutException):
        reason, answered = f"no complete answer within {min(target.timeout_s, limit_s):g} s", False
    except httpx.ConnectError as error:
        reason, answered = f"cannot connect: {error}", False
    except httpx.RemoteProtocolError as error:
        reason = f"the connection ended, or carried what is no HTTP, before the answer was complete: {error}"
    except ConnectionClosed as error:
        reason = f"the WebSocket closed before the expected message: {error}"
    except (InvalidHandshake, InvalidMessage) as error:
        reason = f"the WebSocket's handshake failed: {error}"
    except (httpx.TransportError, OSError) as error:
        reason = f"the connection broke off: {str(error) or type(error).__name__}"
    except Exception as error:  # an answer that no check foresaw is a finding about the server too
        reason = f"an answer that cannot be judged: {type(error).__name__}: {error}"
    return Finding(check, outcome, printable(reason[:MAX_REASON_CHARS]), now() - begun_s), answered
