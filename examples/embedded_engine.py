"""Speak inside your own program: the engine and the shipped voice, without a server.

Needs `pip install 'vivavoce-speech[engine]'`. All texts are spoken at the same time, in one batch.
"""

import argparse
import asyncio
import wave

from vivavoce_engine import Engine, EngineConfig, SynthesisRequest, load_engine
from vivavoce_voice import CHECKPOINT


async def speak(engine: Engine, request: SynthesisRequest, path: str) -> None:
    """Writes one utterance to a WAV file, chunk by chunk as the engine makes it."""
    with wave.open(path, "wb") as file:
        file.setparams((1, 2, engine.info.sample_rate, 0, "NONE", "not compressed"))
        async for chunk in engine.submit(request):
            file.writeframes((chunk.pcm * 32767).round().astype("<i2").tobytes())
        print(f"{path}: {file.tell() / engine.info.sample_rate:.2f} s")


async def speak_all(engine: Engine, texts: list[str], speaker: str, prefix: str) -> None:
    utterances = [
        speak(engine, SynthesisRequest(text, speaker=speaker, seed=1), f"{prefix}{number}.wav")
        for number, text in enumerate(texts, start=1)
    ]
    await asyncio.gather(*utterances)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="+", metavar="text")
    parser.add_argument("--model", default=str(CHECKPOINT), help="checkpoint folder or hub id [the shipped voice]")
    parser.add_argument("--speaker", default="heart", help="a speaker of the checkpoint [%(default)s]")
    parser.add_argument("--prefix", default="speech-", help="of the WAV files: PREFIX1.wav, ... [%(default)s]")
    args = parser.parse_args()

    engine = load_engine(args.model, EngineConfig())  # a CUDA card where there is one, else the CPU
    engine.start()
    try:
        asyncio.run(speak_all(engine, args.texts, args.speaker, args.prefix))
    finally:
        engine.stop()


if __name__ == "__main__":
    main()
