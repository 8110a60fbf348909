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


class Decoding:
    """Code2Wav, and its state by row."""

    def __init__(self, library: c.Library, codec: c.Codec, rows: int) -> None:
        self._library, self._codec = library, address(codec)
        self._samples, self._memory_frames = codec.samples_per_frame, codec.memory_frames
        state_floats = library.functions.vivavoce_code2wav_state(self._codec)
        library.check(state_floats)
        self._state = aligned((rows, state_floats))
        self._position = [0] * rows
        self._scratch = Scratch(self._library)
        self._take_scratch(1)

    def begin(self, row: int, codes: NDArray[np.int32], pool: int | None) -> None:
        """Makes a row new, behind codes [frames, groups] whose audio is not needed."""
        self._state[row] = 0
        self._position[row] = 0
        far, near = codes[: -self._memory_frames], codes[-self._memory_frames :]
        if len(far):
            self._move(row, far, None, pool)
        if len(near):
            self.decode(row, near, pool)

    def room_for(self, codes: NDArray[np.int32]) -> NDArray[np.float32]:
        """Memory for the audio of codes [frames, groups], and the scratch that decoding them takes."""
        self._take_scratch(len(codes))
        return np.empty(len(codes) * self._samples, np.float32)

    def decode(
        self, row: int, codes: NDArray[np.int32], pool: int | None, pcm: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """codes [frames, groups] → audio [frames * samples_per_frame] float32 in [-1, 1], in `pcm` if that is given."""
        if pcm is None:
            pcm = self.room_for(codes)
        assert pcm.shape == (len(codes) * self._samples,)
        self._move(row, codes, pcm, pool)
        return pcm

    def _take_scratch(self, frames: int) -> int:
        return self._scratch.take(self._library.functions.vivavoce_code2wav_scratch(self._codec, frames))

    def _move(self, row: int, codes: NDArray[np.int32], pcm: NDArray[np.float32] | None, pool: int | None) -> None:
        assert codes.ndim == 2
        assert codes.dtype == np.int32
        functions = self._library.functions
        result = functions.vivavoce_code2wav(
            self._codec,
            pool,
            address(self._state[row]),
            self._position[row],
            *codes.shape,
            address(codes),
            None if pcm is None else address(pcm),
            self._take_scratch(len(codes)),
        )
        self._library.check(result)
        self._position[row] += len(codes)
