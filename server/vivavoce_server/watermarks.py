"""Marks in the samples themselves. They stay when a file loses its metadata, is cut, or is encoded again."""

from typing import Protocol

from vivavoce_server.effects import Effect, Samples

INSTALL = "pip install 'vivavoce-speech[watermark]'"


class Watermarker(Protocol):
    """Marks streams of samples, and finds the mark in others. Its streams are independent of each other."""

    @property
    def name(self) -> str:
        """The method, as files and reports name it."""
        ...

    def stream(self, sample_rate: int) -> Effect:
        """Marks one stream of mono samples at `sample_rate` Hz. As many samples leave as enter."""
        ...

    def confidence(self, pcm: Samples, sample_rate: int) -> float:
        """Confidence, from 0 to 1, that mono samples at `sample_rate` Hz are marked."""
        ...


class NoWatermarker(ValueError):
    """The package of the watermark is missing or not the expected one. The message says how to install it."""


def missing(package: str) -> NoWatermarker:
    """The error of a package that is not installed."""
    return NoWatermarker(f"the watermark needs the package {package}: {INSTALL}")
