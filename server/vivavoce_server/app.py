"""create_app: the server as an ASGI app over engines that somebody else made, warmed and will stop."""

from collections.abc import Mapping

from fastapi import FastAPI
from vivavoce_engine import Engine

from vivavoce_server import errors, health, http
from vivavoce_server.config import ServerConfig
from vivavoce_server.service import Service


def create_app(engines: Engine | Mapping[str, Engine], config: ServerConfig) -> FastAPI:
    """An app that serves one engine, or several by model id; the first is also served under OpenAI's model names."""
    if isinstance(engines, Engine):
        engines = {config.model_name or engines.info.name: engines}
    app = FastAPI(title="Vivavoce", description="Streaming speech of the Qwen3-TTS family")
    app.state.service = Service(engines, config)
    app.include_router(http.router)
    app.include_router(health.router)
    errors.install(app)
    return app
