"""/health: the process should live. /ready: route traffic here."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from vivavoce_server.errors import NOT_SERVING_RETRY_S
from vivavoce_server.http import ServiceDep

router = APIRouter()


@router.get("/health")
async def health() -> dict[str, str]:
    return {"status": "ok"}


@router.get("/ready", responses={503: {"description": "Starting, draining or failed"}})
async def ready(service: ServiceDep) -> JSONResponse:
    """True from the end of warm-up until the server drains."""
    if service.ready:
        return JSONResponse({"status": "ready"})
    return JSONResponse({"status": "not ready"}, 503, {"Retry-After": str(int(NOT_SERVING_RETRY_S))})
