"""The layers of the house: an ordered list of rooms, in which imports go downwards only, and no modules in a circle."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "vivavoce_engine": "engine",
    "vivavoce_server": "server",
    "vivavoce_client": "clients/python",
    "vivavoce_web": "clients/web",
    "vivavoce_voice": "voice",
    "voice_recipe": "voice/recipe",
    "vivavoce_bench": "bench",
    "vivavoce_text": "text",
    "vivavoce_eval": "eval",
    "vivavoce_conformance": "conformance",
    "vivavoce_ray": "deploy/ray",
    "examples": ".",
}
"""Package or module → the folder that holds it."""

LAYERS: tuple[tuple[str, ...], ...] = (
    (
        "vivavoce_engine.device",
        "vivavoce_engine.errors",
        "vivavoce_engine.findings",
        "vivavoce_engine.ipc",
        "vivavoce_engine.pages",
        "vivavoce_engine.request",
        "vivavoce_engine.runtime",
        "vivavoce_bench",
        "vivavoce_client",
        "vivavoce_conformance",
        "vivavoce_text",
        "vivavoce_voice",
        "vivavoce_web",
    ),
    (
        "vivavoce_engine.checkpoint",
        "vivavoce_engine.config",
        "vivavoce_engine.embeddings",
        "vivavoce_engine.traces",
        "vivavoce_bench.listener",
        "voice_recipe",
    ),
    ("vivavoce_engine.text",),
    ("vivavoce_engine.batching", "vivavoce_engine.models", "vivavoce_engine.voices"),
    ("vivavoce_engine.front", "vivavoce_engine.model"),
    ("vivavoce_engine.cpu", "vivavoce_engine.fake_runner", "vivavoce_engine.gpu", "vivavoce_engine.process"),
    ("vivavoce_engine.examine", "vivavoce_engine.load", "vivavoce_engine.thinker"),
    ("vivavoce_engine",),
    ("vivavoce_bench.planning", "vivavoce_eval", "vivavoce_server"),
    ("vivavoce_bench.engine", "vivavoce_bench.reading", "vivavoce_ray"),
    ("vivavoce_bench.cards",),
    ("examples", "tests"),
)
"""Lowest first. A room imports rooms of earlier lines only; rooms of one line know nothing of each other."""
ENGINE_LEVELS = 8
"""Most lines that the engine's own rooms may take."""

FORBIDDEN = {
    "vivavoce_engine": {"fastapi", "starlette", "uvicorn", "pydantic", "httpx"},
    "vivavoce_server": {"torch", "transformers", "safetensors"},
    "vivavoce_client": {"torch", "numpy", "fastapi"},
    "vivavoce_conformance": {"torch", "numpy", "fastapi", "vivavoce_client", "vivavoce_engine", "vivavoce_server"},
    "vivavoce_bench.listener": {"torch", "numpy", "fastapi", "vivavoce_engine", "vivavoce_voice"},
    "vivavoce_text": {"torch", "numpy", "fastapi", "vivavoce_engine", "vivavoce_server"},
    "vivavoce_voice": {"torch"},
    "vivavoce_web": {"torch"},
    "vivavoce_eval": {"fastapi", "uvicorn", "vivavoce_server"},
}
"""Package or room → what it never imports, not even inside a function."""
TORCH_FREE = ("batching", "checkpoint", "fake_runner", "front", "ipc", "model", "process", "text", "voices")
"""Rooms of the engine that import no torch."""
FORBIDDEN |= {f"vivavoce_engine.{room}": {"torch", "triton"} for room in TORCH_FREE}


@cache
def modules() -> dict[str, Path]:
    """Module name → file, of all Python code of the project but the tests."""
    found = {}
    for package, root in PACKAGES.items():
        folder = ROOT / root
        inside = sorted((folder / package).rglob("*.py")) or [folder / f"{package}.py"]
        for file in inside:
            parts = file.relative_to(folder).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imported(name: str, file: Path) -> Iterator[str]:
    """The modules that a file imports anywhere in it; of the project's own, the module and not a name in it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                for alias in names:
                    inside = f"{module}.{alias.name}"
                    yield inside if inside in modules() else module
            case ast.ImportFrom(level=level):
                assert level == 0, f"{name} has a relative import"


@cache
def arrows() -> dict[str, frozenset[str]]:
    """Module → all that it imports."""
    return {name: frozenset(imported(name, file)) for name, file in modules().items()}


def within(module: str, room: str) -> bool:
    return module == room or module.startswith(f"{room}.")


@cache
def room_of(module: str) -> str | None:
    """The most exact room of LAYERS that a module lies in; None for what is not of the project."""
    rooms = [room for layer in LAYERS for room in layer if within(module, room)]
    return max(rooms, key=len, default=None)


def level_of(room: str) -> int:
    return next(number for number, layer in enumerate(LAYERS) if room in layer)


def test_every_module_lies_in_a_room() -> None:
    assert [name for name in modules() if room_of(name) is None] == []
    for package in ("vivavoce_engine", "vivavoce_bench"):
        assert [name for name in modules() if room_of(name) == package] == [package], (
            "a module that LAYERS does not name"
        )


def test_every_room_holds_code() -> None:
    rooms = {room_of(name) for name in modules()} | {"tests"}
    assert [room for layer in LAYERS for room in layer if room not in rooms] == []


def test_the_architecture_names_every_room_of_the_engine_with_its_level() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    told: dict[str, int] = {}
    for names, level in re.findall(r"^\| (\S[^|]*?) \| (\d) \|", page, re.MULTILINE):
        told |= {name.strip("`/"): int(level) for name in names.split()}
    rooms = [[room for room in layer if within(room, "vivavoce_engine")] for layer in LAYERS]
    expected = {
        room.removeprefix("vivavoce_engine."): level
        for level, layer in enumerate(filter(None, rooms), 1)
        for room in layer
    }
    assert told == expected


def test_imports_go_down() -> None:
    up = []
    for name, targets in arrows().items():
        room = room_of(name)
        assert room is not None
        for target in targets:
            other = room_of(target)
            if other not in (None, room) and level_of(other) >= level_of(room):
                up.append(f"{name} → {target}")
    assert not up


def test_no_modules_import_each_other_in_a_circle() -> None:
    finished: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " → ".join((*path[path.index(name) :], name))
        if name not in finished:
            for target in sorted(arrows()[name] & arrows().keys()):
                visit(target, (*path, name))
            finished.add(name)

    for module in modules():
        visit(module, ())
    assert finished == set(modules())


def test_the_server_uses_the_face_of_the_engine_alone() -> None:
    past = {
        target
        for name, targets in arrows().items()
        if within(name, "vivavoce_server")
        for target in targets
        if within(target, "vivavoce_engine") and target != "vivavoce_engine"
    }
    fakes = {"vivavoce_engine.fake_runner", "vivavoce_engine.thinker.fake"}
    assert past == fakes, "the fake engine and its thinker are no part of the face"


def test_the_engine_has_few_levels() -> None:
    levels = [layer for layer in LAYERS if any(within(room, "vivavoce_engine") for room in layer)]
    assert len(levels) <= ENGINE_LEVELS


@pytest.mark.parametrize("room", FORBIDDEN)
def test_what_a_room_never_imports(room: str) -> None:
    inside = [name for name in modules() if within(name, room)]
    assert inside
    wrong = [
        f"{name} → {target}"
        for name in inside
        for target in arrows()[name]
        if any(within(target, forbidden) for forbidden in FORBIDDEN[room])
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("vivavoce_engine", "torch"),
        ("vivavoce_server", "torch"),
        ("vivavoce_client.__main__", "vivavoce_engine"),
        ("vivavoce_client.__main__", "numpy"),
        ("vivavoce_client.__main__", "vivavoce_bench"),
        ("vivavoce_bench.listener.cli", "numpy"),
        ("vivavoce_conformance.cli", "numpy"),
        ("vivavoce_conformance.cli", "av"),
        ("vivavoce_bench.listener.cli", "vivavoce_engine"),
    ],
)
def test_import_stays_light(module: str, absent: str) -> None:
    """Imports by way of other modules count too."""
    code = f"import sys, {module}; sys.exit({absent!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
