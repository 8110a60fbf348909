"""Paths that clients are likely to have meant by one that does not exist, for the message of a 404."""

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.types import Scope

from vivavoce_server.methods import allowed_methods

VERSION = "/v1"
MAX_COMPARED_CHARS = 128
LIKENESS = 0.85
"""Least likeness of a path to one that exists, from 0 to 1 as difflib counts it, for it to be a typing error."""


def paths_of(routers: Iterable[APIRouter]) -> tuple[str, ...]:
    """The paths of the routers' routes, for `app.state.paths`."""
    return tuple(route.path for router in routers for route in router.routes if isinstance(route, APIRoute))


def hint(scope: Scope) -> str:
    """The addition to a 404's message: the path that was meant, or "". The message ends before it without a dot."""
    root = scope.get("root_path", "")
    path = scope["path"].removeprefix(root)
    paths: Sequence[str] = scope["app"].state.paths
    for meant in _with_version(path):
        if meant != path and allowed_methods({**scope, "path": root + meant}):
            return f"; there is {root}{meant}. The base URL of OpenAI's clients is this server's address with {VERSION}"
    begun = [known for known in paths if known.startswith(path.rstrip("/") + "/")]
    if begun:
        return f"; it is the beginning of {root}{begun[0]}, and of other paths in {root}/docs"
    like = get_close_matches(path[:MAX_COMPARED_CHARS].lower(), paths, 1, LIKENESS)
    return f"; there is {root}{like[0]}" if like else ""


def _with_version(path: str) -> Iterator[str]:
    """The path with the version that a base URL lacks, or that it has twice or behind something else."""
    _, version, rest = path.rpartition(f"{VERSION}/")
    yield f"{VERSION}/{rest}" if version else VERSION + path
