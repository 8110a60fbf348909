"""create_app: the server as an ASGI app. The caller creates, warms up and stops the engines."""

import logging
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI
from fastapi.middleware.cors import CORSMiddleware
from vivavoce_engine import SpeechEngine
from vivavoce_text import missing_packages

from vivavoce_server import batch, consent_routes, elevenlabs_routes, errors, health, http, playground, voice_routes
from vivavoce_server.access import BEARER, Keyring, load_keyring
from vivavoce_server.config import ServerConfig
from vivavoce_server.context import RequestContextMiddleware
from vivavoce_server.door import DoorMiddleware
from vivavoce_server.limits import BodyLimitMiddleware
from vivavoce_server.live import elevenlabs, elevenlabs_multi, realtime, websocket
from vivavoce_server.live.handshake import refuse_unknown_paths
from vivavoce_server.loop_watch import LoopWatch
from vivavoce_server.methods import MethodsMiddleware
from vivavoce_server.service import Service
from vivavoce_server.wrong_paths import paths_of

log = logging.getLogger(__name__)

API = (
    http.router,
    http.speech_router,
    batch.router,
    voice_routes.router,
    consent_routes.router,
    consent_routes.json_router,
    elevenlabs_routes.router,
    elevenlabs_routes.router_v2,
    elevenlabs_routes.speech_router,
)
"""The routers of the API, whose routes need a key if there are keys."""
SOCKETS = (websocket.router, elevenlabs.router, elevenlabs_multi.router, realtime.router)
"""The routers of WebSockets."""
BUILDING = threading.Lock()
"""Held while the routes of an app are built."""


def create_app(
    engines: SpeechEngine | Mapping[str, SpeechEngine], config: ServerConfig, keyring: Keyring | None = None
) -> FastAPI:
    """Builds an app that serves one engine, or several by model id.

    The first engine is also served under OpenAI's model names. With `keyring` None, the app reads the keys that the
    settings name.
    """
    if isinstance(engines, SpeechEngine):
        engines = {config.model_name or engines.info.name: engines}
    app = FastAPI(
        title="Vivavoce",
        description="Streaming speech of the Qwen3-TTS family",
        responses={"4XX": {"description": "The request is at fault", "model": errors.ErrorBody}},
        lifespan=_watched,
    )
    for package, lack in missing_packages().items():
        log.warning("the package %s is missing: %s", package, lack)
    app.state.service = Service(engines, config)
    app.state.keyring = load_keyring(config) if keyring is None else keyring
    documented = [Depends(BEARER)] if app.state.keyring.wanted else []
    for router in API:
        app.include_router(router, dependencies=documented)
    for router in SOCKETS:
        app.include_router(router)
    app.include_router(playground.router)
    app.include_router(health.router)
    app.state.paths = paths_of((*API, health.router))
    refuse_unknown_paths(app, SOCKETS)
    errors.install(app)
    # The middleware added last is the outermost. Responses of the inner ones therefore have a request id too.
    app.add_middleware(BodyLimitMiddleware, max_body_bytes=config.max_body_bytes)
    app.add_middleware(MethodsMiddleware)
    app.add_middleware(DoorMiddleware, config=config, keyring=app.state.keyring, metrics=app.state.service.metrics)
    if config.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["*"],  # of requests without credentials, which are the only ones allowed
        )
    app.add_middleware(RequestContextMiddleware)
    _build_routes(app)
    return app


@asynccontextmanager
async def _watched(app: FastAPI) -> AsyncIterator[None]:
    """Watches the event loop while the app is served."""
    service = app.state.service
    assert isinstance(service, Service)
    async with LoopWatch(service.metrics.event_loop_lag_s).running():
        yield


def _build_routes(app: FastAPI) -> None:
    """Builds the routes of the routers. FastAPI would do it in the first request, which would wait 60 ms for it.

    FastAPI silences a warning meanwhile, in all threads, and the first thread that is ready lets it through again. One
    app is therefore built at a time: where warnings are errors, another one's first client would get a 500.
    """
    with BUILDING:
        for route in app.routes:
            route.matches({"type": "http", "method": "GET", "path": "", "headers": []})
