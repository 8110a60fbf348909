"""Routes for operators. /health: keep the process alive. /ready: send it traffic. /metrics: figures for Prometheus."""

import asyncio
from typing import Literal

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field
from starlette.responses import Response

from vivavoce_server import errors
from vivavoce_server.build import VERSION, build_commit
from vivavoce_server.errors import NOT_SERVING_RETRY_S
from vivavoce_server.http import ServiceDep

router = APIRouter(tags=["Operation"])
metrics_router = APIRouter(tags=["Operation"])
"""The route that needs a key on a server with keys."""
BUILD = {"version": VERSION, "commit": build_commit()}
"""Fields that tell which build answers. `commit` is empty where it is not known."""


class Health(BaseModel):
    """State of the server, for a supervisor."""

    status: Literal["ok", "failed"] = Field(description="`failed` asks for a restart of the server", examples=["ok"])
    version: str = Field(description="Version of the server", examples=[VERSION])
    commit: str = Field(description="Git commit of the build; empty where it is not known", examples=["1a2b3c4"])


class Readiness(BaseModel):
    """State of the server, for a balancer."""

    status: Literal["ready", "not ready"] = Field(description="`ready` asks for traffic", examples=["ready"])


@metrics_router.get(
    "/metrics",
    summary="Get the metrics",
    response_class=Response,
    responses={200: {"description": "The metrics", "content": {"text/plain": {}}}, **errors.ANY_ROUTE},
)
async def metrics(service: ServiceDep) -> Response:
    """Metrics in Prometheus' text format."""
    return Response(await asyncio.to_thread(service.metrics.exposition), media_type=CONTENT_TYPE_LATEST)


@router.get(
    "/health",
    summary="Tell whether to keep the process",
    responses={
        200: {"description": "The server works, or restarts an engine", "model": Health},
        503: {"description": "An engine failed for good: only a restart of the server helps", "model": Health},
    },
)
async def health(service: ServiceDep) -> JSONResponse:
    """200 while the server works or restarts an engine. 503 once restarting has failed repeatedly.

    A supervisor should restart the whole server on 503.
    """
    if service.failed:
        return JSONResponse({"status": "failed", **BUILD}, 503)
    return JSONResponse({"status": "ok", **BUILD})


@router.get(
    "/ready",
    summary="Tell whether to send traffic",
    responses={
        200: {"description": "Traffic is welcome", "model": Readiness},
        503: {"description": "Starting, draining or failed", "model": Readiness},
    },
)
async def ready(service: ServiceDep) -> JSONResponse:
    """200 from the end of warm-up until the server drains. 503 before, after, and while a broken engine restarts."""
    if service.ready:
        return JSONResponse({"status": "ready"})
    return JSONResponse({"status": "not ready"}, 503, {"Retry-After": str(int(NOT_SERVING_RETRY_S))})
