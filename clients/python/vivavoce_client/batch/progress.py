"""Progress of a job on standard error: a bar in a terminal, else a line for each request."""

import sys
from typing import Any

from vivavoce_client.batch.work import Part


class Progress:
    """A bar where there is a terminal and the package tqdm; lines elsewhere."""

    def __init__(self, total: int, done: int) -> None:
        self._total = total
        self._done = done
        self._bar: Any = None
        if sys.stderr.isatty():
            try:
                from tqdm import tqdm
            except ImportError:
                return
            self._bar = tqdm(total=total, initial=done, unit="line", dynamic_ncols=True)

    def add(self, part: Part) -> None:
        self._done += 1
        if self._bar is None:
            self.note(f"{part.track.name} [{self._done} of {self._total}]: {part.line.place}")
        else:
            self._bar.update()

    def note(self, message: str) -> None:
        """Shows a remark without breaking the bar."""
        if self._bar is None:
            print(message, file=sys.stderr, flush=True)
        else:
            self._bar.write(message, file=sys.stderr)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
