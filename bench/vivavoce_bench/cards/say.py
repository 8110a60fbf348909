"""Speaks the sentences of the quality evaluation with the shipped voice on a GPU, as WAV files 000.wav, 001.wav, …

    python -m vivavoce_bench.cards.say --out FOLDER
    vivavoce eval quality --wavs FOLDER

Speakers take turns, and a sentence's number is its seed, as in the evaluation of a server.
"""

import argparse
import asyncio
import wave
from pathlib import Path

import numpy as np
from vivavoce_engine import Engine, EngineConfig, SynthesisRequest, collect
from vivavoce_engine.checkpoint.files import read_checkpoint
from vivavoce_engine.load import make_runner
from vivavoce_voice import CHECKPOINT, held_out_sentences


async def say(engine: Engine, number: int, text: str, folder: Path) -> None:
    speakers = engine.info.speakers
    chunks, _ = await collect(
        engine.submit(
            SynthesisRequest(
                text, speaker=speakers[number % len(speakers)], language="english", seed=number, max_frames=375
            )
        )
    )
    pcm = np.concatenate([chunk.pcm for chunk in chunks])
    with wave.open(str(folder / f"{number:03d}.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(engine.info.sample_rate)
        file.writeframes((pcm * 32767).round().astype("<i2").tobytes())


async def say_all(engine: Engine, folder: Path) -> None:
    texts = [text for _, text in held_out_sentences()]
    await asyncio.gather(*(say(engine, number, text, folder) for number, text in enumerate(texts)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    config = EngineConfig(max_streams=32, max_context=512, max_queue=1000, max_queue_s=1e6, device="cuda")
    runner = make_runner("voice", read_checkpoint(CHECKPOINT), config)
    engine = Engine(runner, runner.config)
    engine.start()
    try:
        asyncio.run(say_all(engine, args.out))
    finally:
        engine.stop()


if __name__ == "__main__":
    main()
