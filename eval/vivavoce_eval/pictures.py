"""Spectrograms as PNG. Needs matplotlib."""

import io

from vivavoce_eval.extras import need
from vivavoce_eval.waves import RATE_HZ, Samples

INCHES_A_SECOND, HEIGHT_INCHES, DOTS_PER_INCH = 1.6, 1.8, 80
SHOWN_DB = 80


def spectrogram(samples: Samples) -> bytes:
    """Spectrogram as PNG: 0 to 12 kHz, 80 dB down from the loudest, the same width per second in every picture."""
    size = (max(1.5, INCHES_A_SECOND * len(samples) / RATE_HZ), HEIGHT_INCHES)
    figure = need("matplotlib.figure").Figure(figsize=size, dpi=DOTS_PER_INCH, layout="constrained")
    axes = figure.subplots()
    noisy = samples + 1e-7  # avoids the logarithm of 0
    *_, image = axes.specgram(noisy, NFFT=1024, Fs=RATE_HZ, noverlap=768, scale="dB", cmap="magma")
    image.set_clim(image.get_array().max() - SHOWN_DB, image.get_array().max())
    axes.set_yticks([0, 4000, 8000, 12000], ["0", "4", "8", "12 kHz"])
    axes.tick_params(labelsize=7)
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()
