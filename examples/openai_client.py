"""Speak with OpenAI's package: the base URL is the only change.

Needs a running server (`make run`) and `pip install openai`.
"""

import argparse
import os
import wave

from openai import OpenAI

SAMPLE_RATE = 24_000
BLOCK_BYTES = 4096


def speak(client: OpenAI, text: str, voice: str, path: str) -> float:
    """Writes the speech to a WAV file while it arrives. Returns its length in seconds."""
    response = client.audio.speech.with_streaming_response.create(
        model="tts-1",
        voice=voice,
        input=text,
        response_format="pcm",
        extra_body={"seed": 1},  # a field that OpenAI does not have: the same seed gives the same audio
    )
    with response as speech, wave.open(path, "wb") as file:
        file.setparams((1, 2, SAMPLE_RATE, 0, "NONE", "not compressed"))
        for block in speech.iter_bytes(BLOCK_BYTES):
            file.writeframes(block)  # or play it: 16-bit PCM, mono
        return file.tell() / SAMPLE_RATE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument(
        "--voice", default="alloy", help="a voice of the server, or OpenAI's name for one [%(default)s]"
    )
    parser.add_argument("-o", "--output", default="speech.wav", help="WAV file to write [%(default)s]")
    parser.add_argument("--url", default=os.environ.get("VIVAVOCE_URL", "http://127.0.0.1:8000"), help="[%(default)s]")
    args = parser.parse_args()

    # A server without keys takes any key.
    with OpenAI(base_url=f"{args.url}/v1", api_key=os.environ.get("VIVAVOCE_API_KEY", "none")) as client:
        duration_s = speak(client, args.text, args.voice, args.output)
    print(f"{args.output}: {duration_s:.2f} s")


if __name__ == "__main__":
    main()
