"""Tracebacks for logs: the way to an error and its class, without messages that may quote a text."""

import errno

import pytest
from vivavoce_engine import error_name, format_trace


class AcceleratorError(RuntimeError):
    pass


AcceleratorError.__module__ = "torch"


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (ValueError("a text"), "ValueError"),
        (RuntimeError("a text"), "RuntimeError"),
        (OSError("a text"), "OSError"),
        (FileNotFoundError(errno.ENOENT, "a text", "a text"), "FileNotFoundError: [Errno 2] No such file or directory"),
        (MemoryError(), "MemoryError"),
        (RuntimeError("CUDA error: an illegal access\nand more"), "RuntimeError: CUDA error: an illegal access"),
        (RuntimeError("CUDA out of memory. Tried 2 GiB"), "RuntimeError: CUDA out of memory. Tried 2 GiB"),
        (ValueError("CUDA error: a text"), "ValueError"),
        (AcceleratorError("a" * 300), "torch.AcceleratorError: " + "a" * 200),
    ],
)
def test_the_name_of_an_error(error: Exception, name: str) -> None:
    assert error_name(error) == name


def fail() -> None:
    try:
        raise KeyError("a text")
    except KeyError as first:
        second = ValueError("a text")
        second.add_note("a text in a note")
        raise second from first


def test_a_chain_is_told_from_its_beginning() -> None:
    with pytest.raises(ValueError, match="a text") as caught:
        fail()
    first, second = format_trace(caught.value).split("\n\n")
    assert first.startswith("Traceback (most recent call last):\n")
    assert first.endswith("\nKeyError")
    assert second.endswith("\nValueError")
    assert ", in fail\n" in first
    assert "in a note" not in second.replace('second.add_note("a text in a note")', "")


def test_a_circle_of_errors_ends() -> None:
    one, two = ValueError(), KeyError()
    one.__cause__, two.__cause__ = two, one
    assert format_trace(one).count("Traceback") == 2


def test_the_errors_of_a_group_are_told() -> None:
    trace = format_trace(ExceptionGroup("a text", [ValueError("a text"), KeyError("a text")]))
    assert [line for line in trace.split("\n") if line and not line.startswith("Traceback")] == [
        "ExceptionGroup",
        "ValueError",
        "KeyError",
    ]
