"""The style budget of CONTRIBUTING.md, counted."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("engine", "server", "clients", "eval", "voice", "examples")
MAX_FUNCTION_LINES = 60
MAX_FILE_LINES = 500
MAX_PARAMETERS = 6

Function = ast.FunctionDef | ast.AsyncFunctionDef


def python_files() -> Iterator[Path]:
    for folder in SOURCES:
        yield from sorted((ROOT / folder).rglob("*.py"))


def functions(path: Path) -> Iterator[Function]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def is_kernel(function: Function) -> bool:
    """Whether Triton compiles it: one launch is one function, however much it does."""
    return any("triton.jit" in ast.unparse(decorator) for decorator in function.decorator_list)


def test_files_are_found() -> None:
    assert ROOT / "engine/vivavoce_engine/batching/loop.py" in set(python_files())


def test_files_fit_the_budget() -> None:
    long = {
        str(path): count for path in python_files() if (count := len(path.read_text().splitlines())) > MAX_FILE_LINES
    }
    assert not long


def test_functions_fit_the_budget() -> None:
    long = [
        f"{path.name}:{function.lineno} {function.name}"
        for path in python_files()
        for function in functions(path)
        if (function.end_lineno or 0) - function.lineno + 1 > MAX_FUNCTION_LINES and not is_kernel(function)
    ]
    assert not long


def test_functions_take_few_parameters() -> None:
    wide = []
    for path in python_files():
        if {"gpu", "recipe"} & set(path.parts):  # a GPU kernel takes what it takes
            continue
        for function in functions(path):
            arguments = function.args
            names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
            if len([name for name in names if name not in ("self", "cls")]) > MAX_PARAMETERS:
                wide.append(f"{path.name}:{function.lineno} {function.name}")
    assert not wide


def test_the_version_has_a_changelog_entry() -> None:
    import tomllib

    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()
