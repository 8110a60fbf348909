"""The arrows between the packages: server → engine, eval → client and engine, clients → nothing, never back."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "vivavoce_engine": ROOT / "engine/vivavoce_engine",
    "vivavoce_server": ROOT / "server/vivavoce_server",
    "vivavoce_client": ROOT / "clients/python/vivavoce_client",
    "vivavoce_voice": ROOT / "voice/vivavoce_voice",
    "vivavoce_web": ROOT / "clients/web/vivavoce_web",
    "vivavoce_eval": ROOT / "eval/vivavoce_eval",
}
FORBIDDEN = {
    "vivavoce_engine": {"vivavoce_server", "vivavoce_client", "fastapi", "starlette", "uvicorn", "pydantic", "httpx"},
    "vivavoce_server": {"vivavoce_client", "torch", "transformers", "safetensors"},
    "vivavoce_client": {"vivavoce_server", "vivavoce_engine", "vivavoce_voice", "torch", "numpy", "fastapi"},
    "vivavoce_voice": {"vivavoce_server", "vivavoce_client", "vivavoce_engine", "torch"},
    "vivavoce_web": {"vivavoce_server", "vivavoce_client", "vivavoce_engine", "torch"},
    "vivavoce_eval": {"vivavoce_server", "fastapi", "uvicorn"},
}
JUDGES = {"vivavoce_eval"}
"""What no other package imports."""


def imported_packages(folder: Path) -> Iterator[tuple[Path, str]]:
    files = sorted(folder.rglob("*.py"))
    assert files, f"{folder} holds no code"
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Import(names=names):
                    yield from ((file, name.name.split(".")[0]) for name in names)
                case ast.ImportFrom(module=str(module), level=0):
                    yield file, module.split(".")[0]


@pytest.mark.parametrize("package", PACKAGES)
def test_arrows(package: str) -> None:
    forbidden = FORBIDDEN[package] | (JUDGES - {package})
    wrong = [(str(file), name) for file, name in imported_packages(PACKAGES[package]) if name in forbidden]
    assert wrong == []


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("vivavoce_engine", "torch"),
        ("vivavoce_server", "torch"),
        ("vivavoce_client.__main__", "vivavoce_engine"),
        ("vivavoce_client.__main__", "numpy"),
    ],
)
def test_import_stays_light(module: str, absent: str) -> None:
    """What a package pulls in by way of others."""
    code = f"import sys, {module}; sys.exit({absent!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
