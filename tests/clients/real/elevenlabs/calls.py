"""Every call of ElevenLabs' package that speaks or lists, with its defaults. usage: calls.py URL TEXT

Files of what was heard go to the working directory.
"""

import base64
import json
import sys
from pathlib import Path
from typing import Any

from elevenlabs import ElevenLabs

url, text = sys.argv[1:]
client = ElevenLabs(api_key="KEY", base_url=url)
speech = client.text_to_speech
Path("convert.mp3").write_bytes(b"".join(speech.convert("heart", text=text)))
Path("stream.mp3").write_bytes(b"".join(speech.stream("heart", text=text)))
Path("opus.opus").write_bytes(b"".join(speech.convert("heart", text=text, output_format="opus_48000_64")))
timed = speech.convert_with_timestamps("heart", text=text)
Path("timed.mp3").write_bytes(base64.b64decode(timed.audio_base_64))
pieces = list(speech.stream_with_timestamps("heart", text=text))
Path("timed_stream.mp3").write_bytes(b"".join(base64.b64decode(piece.audio_base_64) for piece in pieces))


def alignment(told: list[Any], name: str) -> dict[str, Any]:
    """Characters and their seconds, of the objects that have some."""
    found = [each for each in (getattr(piece, name) for piece in told) if each is not None]
    return {
        "text": "".join(character for each in found for character in each.characters),
        "starts": [at_s for each in found for at_s in each.character_start_times_seconds],
        "ends": [at_s for each in found for at_s in each.character_end_times_seconds],
    }


lists = {
    "written": [alignment([timed], "alignment"), alignment(pieces, "alignment")],
    "said": [alignment([timed], "normalized_alignment"), alignment(pieces, "normalized_alignment")],
    "voices": [voice.name for voice in client.voices.get_all().voices],
    "found": [voice.voice_id for voice in client.voices.search().voices],
    "models": [model.model_id for model in client.models.list()],
    "tier": client.user.subscription.get().tier,
}
print(json.dumps(lists))
