"""The style budget of CONTRIBUTING.md, counted: sizes, parameters, and the English of docstrings and comments."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("engine", "server", "text", "clients", "bench", "conformance", "eval", "voice", "deploy", "examples")
MAX_FUNCTION_LINES = 60
MAX_FILE_LINES = 500
MAX_PARAMETERS = 6
WIDE = {
    # Launchers: a kernel's operands come as they are.
    "engine/vivavoce_engine/gpu/codec/layers.py __call__",
    "engine/vivavoce_engine/gpu/linear.py gemm",
    "engine/vivavoce_engine/gpu/linear.py gemv",
    "engine/vivavoce_engine/gpu/linear.py norm",
    "engine/vivavoce_engine/gpu/sampler.py draw_code_0",
    # Constructors: the sizes of all tables of a model.
    "bench/vivavoce_bench/cards/frame.py build",
    "engine/vivavoce_engine/gpu/frame.py __init__",
    "engine/vivavoce_engine/gpu/sampler.py allocate",
}
"""Functions, beside kernels, that may take more than MAX_PARAMETERS."""
HEADLESS = re.compile(
    r"(What|Whatever|Which|Who|Whom|Whose|Whoever|Whether|Where|When|Whenever|How|However|Why"
    r"|That|Those|So|As|Of|By how|For when|For what|For who|From when|Up to how)\b"
)
"""Openings of a clause or a phrase that lacks its noun: the reader has to guess what the docstring is about."""
ODD_WORDS = re.compile(r"\b(whoever|anew|so many)\b", re.IGNORECASE)

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def python_files() -> Iterator[Path]:
    for folder in SOURCES:
        yield from sorted((ROOT / folder).rglob("*.py"))


def functions(path: Path) -> Iterator[Function]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def is_kernel(function: Function) -> bool:
    """True for a function that Triton compiles: one launch is one function, however much it does."""
    return any("triton.jit" in ast.unparse(decorator) for decorator in function.decorator_list)


def parameters(function: Function) -> int:
    """Number of parameters, keyword-only ones included, without `self`, `cls`, *args and **kwargs."""
    given = function.args
    names = [argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def docstrings(node: Documented) -> Iterator[tuple[int, str]]:
    """Line and text of the docstrings of a module's public names: modules, classes, functions, attributes."""
    for before, statement in zip((None, *node.body), node.body, strict=False):
        match statement:
            case ast.Expr(value=ast.Constant(value=str(text))) if before is None or _is_public_assignment(before):
                yield statement.lineno, text
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if not name.startswith("_") or name == "__init__":
                    yield from docstrings(statement)


def _is_public_assignment(statement: ast.stmt) -> bool:
    match statement:
        case ast.Assign(targets=[target]) | ast.AnnAssign(target=target):
            name = ast.unparse(target).removeprefix("self.")
            return not name.startswith("_")
    return False


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring and each comment; of a script in JavaScript, each line."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".js":
        yield from enumerate(source.splitlines(), start=1)
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


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
    wide = [
        f"{path.relative_to(ROOT)} {function.name}"
        for path in python_files()
        for function in functions(path)
        if parameters(function) > MAX_PARAMETERS and not is_kernel(function)
    ]
    assert set(wide) - WIDE == set()


def test_docstrings_of_public_names_are_found() -> None:
    source = '''
"""Module."""
LIMIT = 1
"""Attribute."""
_HIDDEN = 2
"""Hidden attribute."""

class Public:
    """Class."""
    def method(self) -> None:
        """Method."""
        self.field = 0
        """Field."""
    def _private(self) -> None:
        """Private method."""
'''
    found = [text for _, text in docstrings(ast.parse(source))]
    assert found == ["Module.", "Attribute.", "Class.", "Method.", "Field."]


@pytest.mark.parametrize(
    ("opening", "headless"),
    [("What it does.", True), ("By how much it grows.", True), ("Offers audio.", False), ("Whole seconds.", False)],
)
def test_headless_openings_are_told_from_others(opening: str, headless: bool) -> None:
    assert bool(HEADLESS.match(opening)) == headless


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    headless = [
        f"{path.relative_to(ROOT)}:{line} {text.strip()[:60]}"
        for path in python_files()
        for line, text in docstrings(ast.parse(path.read_text(encoding="utf-8")))
        if HEADLESS.match(text.strip())
    ]
    assert headless == []


def test_docstrings_and_comments_use_plain_words() -> None:
    odd = [
        f"{path.relative_to(ROOT)}:{line} {match.group()}"
        for path in (*python_files(), *(ROOT / "clients/web").rglob("*.js"))
        for line, text in prose(path)
        if (match := ODD_WORDS.search(" ".join(text.split())))
    ]
    assert odd == []


def test_the_version_has_a_changelog_entry() -> None:
    import tomllib

    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()
