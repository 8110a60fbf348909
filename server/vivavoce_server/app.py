"""create_app: the server as an ASGI app. The caller creates, warms up and stops the engines."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import Depends, FastAPI
from fastapi.middleware.cors import CORSMiddleware
from vivavoce_engine import SpeechEngine, Thinker
from vivavoce_text import missing_packages

from vivavoce_server import (
    asyncapi,
    batch,
    captioned_routes,
    consent_routes,
    elevenlabs_routes,
    errors,
    health,
    http,
    playground,
    reference_pages,
    voice_routes,
)
from vivavoce_server.access import BEARER, ELEVENLABS_KEY, Keyring, load_keyring
from vivavoce_server.chat import routes as chat_routes
from vivavoce_server.config import ServerConfig
from vivavoce_server.context import RequestContextMiddleware
from vivavoce_server.door import DoorMiddleware
from vivavoce_server.limits import BodyLimitMiddleware
from vivavoce_server.live import elevenlabs, elevenlabs_multi, realtime, websocket
from vivavoce_server.live.handshake import refuse_unknown_paths
from vivavoce_server.loop_watch import LoopWatch
from vivavoce_server.methods import MethodsMiddleware
from vivavoce_server.root_path import RootPathMiddleware
from vivavoce_server.service import Service
from vivavoce_server.tracing import open_tracing
from vivavoce_server.wrong_paths import paths_of

log = logging.getLogger(__name__)

SOCKETS = (websocket.router, elevenlabs.router, elevenlabs_multi.router, realtime.router)
"""The routers of WebSockets."""
OPENAI = (
    http.router,
    http.speech_router,
    chat_routes.router,
    batch.router,
    captioned_routes.router,
    voice_routes.router,
    consent_routes.router,
    consent_routes.json_router,
)
"""The routers of OpenAI's routes and their extensions."""
ELEVENLABS = (elevenlabs_routes.router, elevenlabs_routes.router_v2, elevenlabs_routes.speech_router)
"""The routers of ElevenLabs' routes."""
TAGS = {
    "Speech": "Text in, speech out. The fields are OpenAI's, then extensions.",
    "Chat": "A conversation in, an answer out, spoken while it is thought. The fields are OpenAI's.",
    "Models": "The models that are served.",
    "Voices": "Speakers of the models, and voices that clients store.",
    "Consents": "Recordings in which speakers consent to the cloning of their voices.",
    "ElevenLabs": "ElevenLabs' routes, for clients that are given this address.",
    "Operation": "Routes for supervisors, balancers and Prometheus.",
}
"""Tags of the OpenAPI document, in the order in which pages show them."""
DESCRIPTION = """\
OpenAI's clients speak through this server once their base URL is its address with `/v1`.

Every error has the body `{"error": {"message", "type", "param", "code"}}`, with all four keys. Every answer has an
`X-Request-ID`, which is also on the log's lines. 429 and 503 have a `Retry-After`. A failure after the first byte
breaks the transfer off, so that half of a file never looks whole.

The WebSockets are in [another document](asyncapi).
"""
BUILDING = threading.Lock()
"""Held while the routes of an app are built."""


def create_app(
    engines: SpeechEngine | Mapping[str, SpeechEngine],
    config: ServerConfig,
    keyring: Keyring | None = None,
    thinkers: Mapping[str, Thinker] | None = None,
) -> FastAPI:
    """Builds an app that serves one engine, or several by model id.

    The first engine is also served under OpenAI's model names. With `keyring` None, the app reads the keys that the
    settings name. `thinkers` are those of models that chat, by the models' ids.
    """
    if isinstance(engines, SpeechEngine):
        engines = {config.model_name or engines.info.name: engines}
    app = FastAPI(
        title="Vivavoce",
        summary="Streaming speech of the Qwen3-TTS model family",
        description=DESCRIPTION,
        version=version("vivavoce-speech"),
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        openapi_tags=[{"name": name, "description": about} for name, about in TAGS.items()],
        # The address of the document itself, with any prefix that a proxy puts before it.
        servers=[{"url": "./", "description": "This server"}],
        root_path_in_servers=False,
        docs_url=None,  # reference_pages.py has pages that load nothing from elsewhere
        redoc_url=None,
        responses={"4XX": {"description": "The request is at fault", "model": errors.ErrorBody}},
        lifespan=_watched,
        # FastAPI's own spans and records hold addresses with their queries, and messages of errors.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    for package, lack in missing_packages().items():
        log.warning("the package %s is missing: %s", package, lack)
    app.state.keyring = load_keyring(config) if keyring is None else keyring
    app.state.service = Service(engines, config, thinkers or {}, app.state.keyring.ledger)
    app.state.tracing = open_tracing(config)
    _include_routers(app)
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
    if config.root_path:
        app.add_middleware(RootPathMiddleware, root_path=config.root_path)
    app.add_middleware(RequestContextMiddleware, tracer=app.state.tracing.tracer)
    _build_routes(app)
    return app


def _include_routers(app: FastAPI) -> None:
    """Adds all routes. Those of the API need a key if there are keys, and the OpenAPI document says so."""
    key = [Depends(BEARER)] if app.state.keyring.wanted else []
    either_key = [*key, Depends(ELEVENLABS_KEY)] if key else []
    for router in OPENAI:
        app.include_router(router, dependencies=key, responses=errors.ANY_ROUTE)
    for router in ELEVENLABS:
        app.include_router(router, dependencies=either_key, responses=errors.ANY_ROUTE)
    for router in SOCKETS:
        app.include_router(router)
    app.include_router(playground.router)
    app.include_router(reference_pages.router)
    app.include_router(asyncapi.router)
    app.include_router(health.metrics_router, dependencies=key)
    app.include_router(health.router)
    app.state.paths = paths_of((*OPENAI, *ELEVENLABS, health.metrics_router, health.router))


@asynccontextmanager
async def _watched(app: FastAPI) -> AsyncIterator[None]:
    """Watches the event loop while the app is served."""
    service = app.state.service
    assert isinstance(service, Service)
    async with LoopWatch(service.metrics.event_loop_lag_s).running():
        yield
    for thinker in service.chats.thinkers.values():
        await thinker.aclose()
    await asyncio.to_thread(app.state.tracing.close)


def _build_routes(app: FastAPI) -> None:
    """Builds the routes of the routers. FastAPI would do it in the first request, which would wait 60 ms for it.

    FastAPI silences a warning meanwhile, in all threads, and the first thread that is ready lets it through again. One
    app is therefore built at a time: where warnings are errors, another one's first client would get a 500.
    """
    with BUILDING:
        for route in app.routes:
            route.matches({"type": "http", "method": "GET", "path": "", "headers": []})
