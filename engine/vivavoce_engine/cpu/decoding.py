"""Code2Wav by the CPU's kernels: its state by row, and the memory that a call takes."""

import numpy as np
from numpy.typing import NDArray

from vivavoce_engine.cpu import library as c
from vivavoce_engine.cpu.packing import address, aligned


class Scratch:
    """Memory that a call uses and forgets. It grows to the largest that was asked for."""

    def __init__(self, library: c.Library) -> None:
        self._library = library
        self._memory = aligned((0,))

    def take(self, floats: int) -> int:
        """The address of this many floats. Raises Refused if the number is what a kernel that refuses answers."""
        self._library.check(floats)
        if floats > len(self._memory):
            self._memory = aligned((floats,))
        return address(self._memory)


MANY_FRAMES = 1 << 20
"""More frames than any pass of the kernel takes. Its scratch is that of a pass."""


class Decoding:
    """Code2Wav, and its state by row. Several threads may decode different rows, each with a scratch of its own."""

    def __init__(self, library: c.Library, codec: c.Codec, rows: int, threads: int = 1) -> None:
        self._library, self._codec = library, address(codec)
        self._samples, self._memory_frames = codec.samples_per_frame, codec.memory_frames
        functions = library.functions
        state_floats = functions.vivavoce_code2wav_state(self._codec)
        scratch_floats = functions.vivavoce_code2wav_scratch(self._codec, MANY_FRAMES)
        library.check(state_floats)
        library.check(scratch_floats)
        self._state = aligned((rows, state_floats))
        self._position = [0] * rows
        self._scratch = [aligned((scratch_floats,)) for _ in range(threads)]

    def begin(self, row: int, codes: NDArray[np.int32], pool: int | None, thread: int = 0) -> None:
        """Makes a row new, behind codes [frames, groups] whose audio is not needed."""
        self._state[row] = 0
        self._position[row] = 0
        far, near = codes[: -self._memory_frames], codes[-self._memory_frames :]
        if len(far):
            self._move(row, far, None, pool, thread)
        if len(near):
            self.decode(row, near, pool, thread=thread)

    def room_for(self, codes: NDArray[np.int32]) -> NDArray[np.float32]:
        """Memory for the audio of codes [frames, groups]."""
        return np.empty(len(codes) * self._samples, np.float32)

    def decode(
        self,
        row: int,
        codes: NDArray[np.int32],
        pool: int | None,
        pcm: NDArray[np.float32] | None = None,
        thread: int = 0,
    ) -> NDArray[np.float32]:
        """codes [frames, groups] → audio [frames * samples_per_frame] float32 in [-1, 1], in `pcm` if that is given."""
        if pcm is None:
            pcm = self.room_for(codes)
        assert pcm.shape == (len(codes) * self._samples,)
        self._move(row, codes, pcm, pool, thread)
        return pcm

    def _move(
        self, row: int, codes: NDArray[np.int32], pcm: NDArray[np.float32] | None, pool: int | None, thread: int
    ) -> None:
        assert codes.ndim == 2
        assert codes.dtype == np.int32
        result = self._library.functions.vivavoce_code2wav(
            self._codec,
            pool,
            address(self._state[row]),
            self._position[row],
            *codes.shape,
            address(codes),
            None if pcm is None else address(pcm),
            address(self._scratch[thread]),
        )
        self._library.check(result)
        self._position[row] += len(codes)
