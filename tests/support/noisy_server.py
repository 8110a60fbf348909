"""`vivavoce serve` with faults: it prints and warns at its start, and texts that name a fault cause it.

python noisy_server.py FLAGS
"""

import asyncio
import gc
import os
import subprocess
import sys
import threading
import warnings
from typing import Any

import vivavoce_server.http
import vivavoce_server.live.session
from vivavoce_server import cli, logs
from vivavoce_server.__main__ import main

BUG, STRAY, THREAD, FINALIZER, CALLBACK = "a bug", "a stray task", "a thread", "a finalizer", "a callback"
PRINTED = ("printed by Python", "written to a descriptor", "printed by a child", "warned of")


def cause(text: str) -> None:
    """Causes the fault that a text names. Each error repeats the text."""
    loop = asyncio.get_running_loop()

    async def stray() -> None:
        raise ValueError(text)

    class Final:
        def __del__(self) -> None:
            raise ValueError(text)

    def fail(text: str) -> None:
        raise ValueError(text)

    if BUG in text:
        try:
            int(text)
        except ValueError as error:
            raise ExceptionGroup(text, [RuntimeError(text)]) from error
    if STRAY in text:
        loop.create_task(stray())  # noqa: RUF006  # it is to be forgotten
        loop.call_later(0.01, gc.collect)
    if THREAD in text:
        threading.Thread(target=fail, args=(text,)).start()
    if FINALIZER in text:
        Final()
    if CALLBACK in text:
        loop.call_soon(fail, text)


def plant() -> None:
    """Makes requests and utterances cause the faults of their texts."""
    prepare = vivavoce_server.http.prepare  # type: ignore[attr-defined]
    begin = vivavoce_server.live.session.LiveSession.append

    def faulty_prepare(request: Any, *args: Any) -> Any:
        cause(request.input)
        return prepare(request, *args)

    def faulty_append(self: Any, text: str) -> None:
        cause(text)
        begin(self, text)

    vivavoce_server.http.prepare = faulty_prepare  # type: ignore[assignment,attr-defined]
    vivavoce_server.live.session.LiveSession.append = faulty_append  # type: ignore[method-assign]


def make_noise() -> None:
    print(PRINTED[0])
    print(f"{PRINTED[0]} to stderr", file=sys.stderr)
    os.write(2, f"{PRINTED[1]}\nwith a second line \x1b[31m\xff and no end".encode("latin-1"))
    subprocess.run([sys.executable, "-c", f"print({PRINTED[2]!r})"], check=True)
    warnings.warn(f"{PRINTED[3]}\nin two lines, by 100 %", UserWarning, stacklevel=1)


def noisy_log_to_stderr(level: str, as_json: bool) -> tuple[int, int]:
    output = logs.log_to_stderr(level, as_json)
    make_noise()
    return output


if __name__ == "__main__":
    plant()
    cli.log_to_stderr = noisy_log_to_stderr  # type: ignore[attr-defined]
    sys.exit(main())
