"""For operators. /health: the process should live. /ready: route traffic here. /metrics: how it goes."""

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from vivavoce_server.access import identify
from vivavoce_server.errors import NOT_SERVING_RETRY_S
from vivavoce_server.http import ServiceDep

router = APIRouter()


@router.get("/metrics", response_class=PlainTextResponse, dependencies=[Depends(identify)])
async def metrics(service: ServiceDep) -> Response:
    """Prometheus' text format."""
    return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)


@router.get("/health", responses={503: {"description": "An engine does not come back: only a restart helps"}})
async def health(service: ServiceDep) -> JSONResponse:
    """Also while an engine is started anew; no longer once that has failed over and over, so that whoever watches
    starts the whole server anew."""
    if service.failed:
        return JSONResponse({"status": "failed"}, 503)
    return JSONResponse({"status": "ok"})


@router.get("/ready", responses={503: {"description": "Starting, draining or failed"}})
async def ready(service: ServiceDep) -> JSONResponse:
    """True from the end of warm-up until the server drains, but not while a broken engine is started anew."""
    if service.ready:
        return JSONResponse({"status": "ready"})
    return JSONResponse({"status": "not ready"}, 503, {"Retry-After": str(int(NOT_SERVING_RETRY_S))})
