"""Routes for operators. /health: keep the process alive. /ready: send it traffic. /metrics: figures for Prometheus."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from vivavoce_server.build import VERSION, build_commit
from vivavoce_server.errors import NOT_SERVING_RETRY_S
from vivavoce_server.http import ServiceDep

router = APIRouter()
BUILD = {"version": VERSION, "commit": build_commit()}
"""Fields that tell which build answers. `commit` is empty where it is not known."""


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(service: ServiceDep) -> Response:
    """Metrics in Prometheus' text format."""
    return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)


@router.get(
    "/health", responses={503: {"description": "An engine failed for good: only a restart of the server helps"}}
)
async def health(service: ServiceDep) -> JSONResponse:
    """200 while the server works or restarts an engine. 503 once restarting has failed repeatedly.

    A supervisor should restart the whole server on 503.
    """
    if service.failed:
        return JSONResponse({"status": "failed", **BUILD}, 503)
    return JSONResponse({"status": "ok", **BUILD})


@router.get("/ready", responses={503: {"description": "Starting, draining or failed"}})
async def ready(service: ServiceDep) -> JSONResponse:
    """200 from the end of warm-up until the server drains. 503 before, after, and while a broken engine restarts."""
    if service.ready:
        return JSONResponse({"status": "ready"})
    return JSONResponse({"status": "not ready"}, 503, {"Retry-After": str(int(NOT_SERVING_RETRY_S))})
