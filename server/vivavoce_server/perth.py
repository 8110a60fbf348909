"""Perth's implicit watermark (Resemble AI, MIT licence), computed on streams, with the weights of its own package.

A network raises and lowers the magnitudes of a short-time spectrum below 2 kHz by little. Another network tells such
speech from other speech. The package's own code needs the whole signal, librosa, torchaudio and PyTorch; this module
needs NumPy, and the package for its weights alone.

The network has been trained on windows of 64 ms every 10 ms at 32 kHz. The same windows at another rate have the same
bins, so nothing is resampled: only the number of samples in them differs. The network was also trained to see 150 ms of
later sound. It sees none here, because a listener would wait for it.
"""

import hashlib
import io
import pickle
import zipfile
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from vivavoce_server.effects import Samples
from vivavoce_server.watermarks import INSTALL, NoWatermarker, missing

Array = NDArray[np.float32]
Layer = tuple[Array, Array, int]
"""A convolution: its matrix [inputs times taps, outputs], its bias, and its number of taps."""
Layers = list[Layer]
PACKAGE = "resemble-perth"
WEIGHTS = "perth/perth_net/pretrained/implicit/perth_net_250000.pth.tar"
WEIGHTS_SHA256 = "a15bce457ebc53ce5e6c9c3f11df78cf7ee2bf9cdab0a798902135b4c4027670"
TRAINED_WINDOW = 2048
"""Samples of a window at the rate of the training."""
WINDOW_MS, HOP_MS = 64, 10
BINS = 128
"""Bins of the spectrum that carry the mark: those below 2 kHz."""
FLOOR_DB, RANGE_DB = 180.0, 195.0
"""Magnitudes m become (20 lg m + FLOOR_DB) / RANGE_DB, which is 0 for digital silence."""
SILENT = 0.05
"""Frames whose magnitudes sum up to less than this share of the loudest frame's are left alone."""
STRENGTH = 0.7
"""Share of the network's change that is made. See docs/marked_audio.md for the measurements."""
BLOCK_FRAMES = 4
"""Frames that are marked at once. A stream is late by a window, and by these frames at most."""
BRANCHES = {"slow": 1.25, "normal": 1.0, "fast": 0.75}
"""Parts of the detector, and the factors by which each stretches time."""


@dataclass(frozen=True, slots=True)
class PerthWatermarker:
    """A `Watermarker` with Perth's weights."""

    encoder: Layers
    detectors: dict[str, Layers]
    name: str = field(default="perth", init=False)

    def stream(self, sample_rate: int) -> "PerthStream":
        return PerthStream(self.encoder, sample_rate)

    def confidence(self, pcm: Samples, sample_rate: int) -> float:
        levels = _levels(_spectra(_padded(pcm, sample_rate), _hann(sample_rate)))
        sums = levels.sum(axis=1)
        loud = sums > SILENT * sums.max(initial=0.0)
        if not loud.any():
            return 0.0
        seen = [_branch(layers, levels[:, :BINS], loud, BRANCHES[name]) for name, layers in self.detectors.items()]
        attention, marks = (np.array(column) for column in zip(*seen, strict=True))
        weights = np.exp(attention - attention.max())
        return float(np.clip((weights * marks).sum() / weights.sum(), 0.0, 1.0))


class PerthStream:
    """Marks one stream. The result does not depend on how the stream is cut."""

    def __init__(self, layers: Layers, sample_rate: int) -> None:
        self._hop = sample_rate * HOP_MS // 1000
        self._hann = _hann(sample_rate)
        window = len(self._hann)
        squares = np.zeros(-(-window // self._hop) * self._hop)
        squares[:window] = self._hann**2
        overlap = squares.reshape(-1, self._hop).sum(axis=0)
        self._synthesis = (self._hann / np.resize(overlap, window)).astype(np.float32)
        self._held: Array = np.zeros(window // 2, np.float32)
        """Samples from the start of the next block on. Half a window of silence precedes the stream."""
        self._change: Array = np.zeros(0, np.float32)
        """Changes of the first held samples by the blocks before."""
        self._network = Network(layers)
        self._loudest = np.float32(0)
        self._lead_samples = window // 2
        """Samples of the silence in front that have not been dropped yet."""
        self._inside_samples = 0

    def feed(self, pcm: Samples) -> Samples:
        self._inside_samples += len(pcm)
        return self._advance(pcm)

    def flush(self) -> Samples:
        rest = self._inside_samples
        return self._advance(np.zeros(2 * len(self._hann) + BLOCK_FRAMES * self._hop, np.float32))[:rest]

    def _advance(self, pcm: Samples) -> Samples:
        self._held = np.concatenate([self._held, pcm])
        step = BLOCK_FRAMES * self._hop
        block_samples = step - self._hop + len(self._hann)
        done: list[Samples] = [np.zeros(0, np.float32)]
        while len(self._held) >= block_samples:
            change = self._changes(_spectra(self._held[:block_samples], self._hann, self._hop))
            change[: len(self._change)] += self._change
            done.append(self._held[:step] + change[:step])
            self._held, self._change = self._held[step:], change[step:]
        marked: Samples = np.concatenate(done)
        lead = min(self._lead_samples, len(marked))
        self._lead_samples -= lead
        self._inside_samples -= len(marked) - lead
        return marked[lead:]

    def _changes(self, spectra: NDArray[np.complex64]) -> Array:
        """The change of a block's samples by its frames."""
        levels = _levels(spectra)
        sums = levels.sum(axis=1)
        self._loudest = max(self._loudest, sums.max())
        residual = self._network(levels[:, :BINS]) * (sums > SILENT * self._loudest)[:, np.newaxis]
        changed = np.zeros_like(spectra)
        changed[:, :BINS] = spectra[:, :BINS] * (10.0 ** (STRENGTH * RANGE_DB / 20 * residual) - 1)
        frames = np.fft.irfft(changed, len(self._hann), axis=1).astype(np.float32) * self._synthesis
        change = np.zeros((BLOCK_FRAMES - 1) * self._hop + len(self._hann), np.float32)
        for number, frame in enumerate(frames):
            change[number * self._hop :][: len(frame)] += frame
        return change


@cache
def load_perth() -> PerthWatermarker:
    """Reads the weights.

    Raises:
        NoWatermarker: the package is not installed, or its weights are others.
    """
    try:
        path = Path(str(distribution(PACKAGE).locate_file(WEIGHTS)))
        content = path.read_bytes()
    except (PackageNotFoundError, OSError):
        raise missing(PACKAGE) from None
    if hashlib.sha256(content).hexdigest() != WEIGHTS_SHA256:
        raise NoWatermarker(f"the weights in the package {PACKAGE} are not the expected ones: {INSTALL}")
    # One stream is little work, and streams are many. Threads for each product would wait for each other.
    threadpool_limits(1, "blas")
    tensors = read_tensors(content)
    detectors = {name: _layers_of(tensors, f"decoder.{name}_layers") for name in BRANCHES}
    return PerthWatermarker(_layers_of(tensors, "encoder.layers", is_causal=True), detectors)


def read_tensors(content: bytes) -> dict[str, Array]:
    """The tensors of a checkpoint of PyTorch whose content is trusted, read without PyTorch."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        (index,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
        reader = _TensorReader(archive, index.removesuffix("data.pkl"), io.BytesIO(archive.read(index)))
        model: dict[str, Array] = reader.load()["model"]
    return model


class _TensorReader(pickle.Unpickler):
    """Reads what PyTorch saves: tensors whose numbers are files of the same archive."""

    def __init__(self, archive: zipfile.ZipFile, folder: str, index: io.BytesIO) -> None:
        super().__init__(index)
        self._archive, self._folder = archive, folder

    def find_class(self, module: str, name: str) -> object:
        known: dict[tuple[str, str], object] = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): _tensor,
            ("torch", "FloatStorage"): np.float32,
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a tensor")
        return known[module, name]

    def persistent_load(self, pid: tuple[str, type[np.float32], str, str, int]) -> Array:
        _, dtype, key, _, _ = pid
        return np.frombuffer(self._archive.read(f"{self._folder}data/{key}"), dtype)


def _tensor(storage: Array, offset: int, shape: tuple[int, ...], stride: tuple[int, ...], *_: object) -> Array:
    strides = tuple(storage.itemsize * step for step in stride)
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, strides)


def _layers_of(tensors: dict[str, Array], name: str, is_causal: bool = False) -> Layers:
    """The stack of convolutions of that name. A causal one lacks the taps for later frames."""
    layers: Layers = []
    while (weight := tensors.get(f"{name}.{len(layers)}.conv.weight")) is not None:
        taps = weight.shape[2] // 2 + 1 if is_causal else weight.shape[2]
        matrix = np.ascontiguousarray(weight[:, :, :taps].reshape(len(weight), -1).T)
        layers.append((matrix, tensors[f"{name}.{len(layers)}.conv.bias"], taps))
    return layers


class Network:
    """A stack of causal convolutions over a stream of frames. It keeps the last inputs of each."""

    def __init__(self, layers: Layers) -> None:
        self._layers = layers
        self._before: list[Array] = [
            np.zeros((taps - 1, len(matrix) // taps), np.float32) for matrix, _, taps in layers
        ]
        """The last frames before, for each convolution."""

    def __call__(self, frames: Array) -> Array:
        """The outputs for the next frames [frames, channels]."""
        for number, layer in enumerate(self._layers):
            seen = np.concatenate([self._before[number], frames])
            self._before[number] = seen[len(frames) :]
            frames = _convolved(layer, seen, is_last=number == len(self._layers) - 1)
        return frames


def _whole(layers: Layers, frames: Array) -> Array:
    """The outputs of a stack of convolutions for all frames [frames, channels], with silence around them."""
    for number, layer in enumerate(layers):
        silence = np.zeros((layer[2] // 2, frames.shape[1]), np.float32)
        frames = _convolved(layer, np.concatenate([silence, frames, silence]), is_last=number == len(layers) - 1)
    return frames


def _convolved(layer: Layer, frames: Array, is_last: bool) -> Array:
    """One convolution. It makes as many frames less as it has taps but one. All but the last are leaky."""
    matrix, bias, taps = layer
    views = np.lib.stride_tricks.sliding_window_view(frames, taps, axis=0)
    outputs: Array = views.reshape(-1, len(matrix)) @ matrix + bias
    return outputs if is_last else np.maximum(outputs, np.float32(0.01) * outputs)


def _branch(layers: Layers, levels: Array, loud: NDArray[np.bool_], factor: float) -> tuple[float, float]:
    """Attention and verdict of one part of the detector: means over the frames that are not silent."""
    frames = max(1, int(len(levels) * factor))
    places = np.linspace(0, len(levels) - 1, frames)
    before = places.astype(int)
    after = np.minimum(before + 1, len(levels) - 1)
    share = (places - before).astype(np.float32)[:, np.newaxis]
    stretched = levels[before] * (1 - share) + levels[after] * share
    chosen = loud[np.arange(frames) * len(levels) // frames]
    if not chosen.any():
        chosen[:] = True
    attention, mark = _whole(layers, stretched)[chosen].mean(axis=0)
    return float(attention), float(mark)


def _hann(sample_rate: int) -> Array:
    """The window at a sample rate in Hz: periodic, so that windows at the hop's distance overlap evenly."""
    window = sample_rate * WINDOW_MS // 1000
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)).astype(np.float32)


def _padded(pcm: Samples, sample_rate: int) -> Samples:
    """Samples with half a window of silence on both sides."""
    return np.pad(pcm, sample_rate * WINDOW_MS // 2000)


def _spectra(pcm: Samples, hann: Array, hop: int | None = None) -> NDArray[np.complex64]:
    """Spectra [frames, bins] of the windows that lie in the samples whole."""
    hop = hop or len(hann) * HOP_MS // WINDOW_MS
    windows = np.lib.stride_tricks.sliding_window_view(pcm, len(hann))[::hop]
    return np.fft.rfft(windows * hann, axis=1).astype(np.complex64)


def _levels(spectra: NDArray[np.complex64]) -> Array:
    """The network's view of spectra: magnitudes in decibels, scaled to about 0 to 1."""
    window = 2 * (spectra.shape[1] - 1)
    with np.errstate(all="ignore"):  # samples that are no numbers are found by the encoder
        magnitudes = np.maximum(np.abs(spectra) * np.float32(TRAINED_WINDOW / window), np.float32(1e-9))
        levels: Array = (20 * np.log10(magnitudes) + np.float32(FLOOR_DB)) / np.float32(RANGE_DB)
    return levels
