"""Vivavoce's HTTP server. It knows FastAPI and audio containers, but neither torch nor tokens nor a model's internals.

app = create_app(engine, ServerConfig())    # any ASGI server runs it; `vivavoce serve` uses uvicorn
"""

from vivavoce_server.app import create_app
from vivavoce_server.config import ServerConfig

__all__ = ["ServerConfig", "create_app"]
