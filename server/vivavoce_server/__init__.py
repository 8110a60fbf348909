"""Vivavoce's HTTP server. It knows FastAPI and audio containers, but neither torch nor tokens nor a model's internals.

app = create_app(engine, ServerConfig())    # any ASGI server runs it; `vivavoce serve` uses uvicorn
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vivavoce_server.app import create_app
    from vivavoce_server.config import ServerConfig

__all__ = ["ServerConfig", "create_app"]

_MODULES = {"ServerConfig": "config", "create_app": "app"}


def __getattr__(name: str) -> Any:  # noqa: ANN401  # that of the module
    """Imports a public name when it is first used, so that `python -m vivavoce_server` can say what it lacks."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
