"""Speak with the voice of a recording.

Needs a server on a Base checkpoint (`vivavoce serve --model Qwen/Qwen3-TTS-12Hz-1.7B-Base`) and
`pip install vivavoce-speech`. The recording is sent along with the text. With --keep the server stores it instead, and
every client of the server can speak with it by that name. Clone a voice only if its speaker agrees.
"""

import argparse
import base64
import os
import wave
from pathlib import Path

from vivavoce_client import Client, NewVoice, SpeechOptions

SAMPLE_RATE = 24_000
SEED = 1


def speak_as(client: Client, recording: bytes, transcript: str | None, text: str) -> bytes:
    """16-bit PCM in the voice of a recording that is sent along with the text. The server does not keep it."""
    options: SpeechOptions = {"ref_audio": base64.b64encode(recording).decode(), "seed": SEED}
    if transcript is not None:
        options["ref_text"] = transcript
    return client.speak(text, voice="", **options)


def keep_and_speak(client: Client, voice: NewVoice, text: str) -> bytes:
    """16-bit PCM in a voice that the server stores first."""
    stored = client.add_voice(voice)
    return client.speak(text, voice=stored.name, seed=SEED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recording", type=Path, help="audio file of 1 to 30 s")
    parser.add_argument("text")
    parser.add_argument("--transcript", help="the words of the recording; the voice is closer with them")
    parser.add_argument("--keep", metavar="NAME", help="store the voice by this name")
    parser.add_argument("--consent", help="the speaker's permission, in words; --keep needs it")
    parser.add_argument("-o", "--output", default="cloned.wav", help="WAV file to write [%(default)s]")
    parser.add_argument("--url", default=os.environ.get("VIVAVOCE_URL", "http://127.0.0.1:8000"), help="[%(default)s]")
    args = parser.parse_args()
    if args.keep and not args.consent:
        parser.error("--keep needs --consent")

    recording = args.recording.read_bytes()
    with Client(args.url, api_key=os.environ.get("VIVAVOCE_API_KEY")) as client:
        if args.keep:
            pcm = keep_and_speak(client, NewVoice(args.keep, args.consent, recording, args.transcript), args.text)
        else:
            pcm = speak_as(client, recording, args.transcript, args.text)
    with wave.open(args.output, "wb") as file:
        file.setparams((1, 2, SAMPLE_RATE, 0, "NONE", "not compressed"))
        file.writeframes(pcm)
        print(f"{args.output}: {file.tell() / SAMPLE_RATE:.2f} s")


if __name__ == "__main__":
    main()
