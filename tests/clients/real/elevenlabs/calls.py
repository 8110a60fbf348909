"""Every call of ElevenLabs' package that speaks or lists, with its defaults. usage: calls.py URL TEXT

Files of what was heard go to the working directory.
"""

import base64
import json
import sys
from pathlib import Path

from elevenlabs import ElevenLabs

url, text = sys.argv[1:]
client = ElevenLabs(api_key="KEY", base_url=url)
speech = client.text_to_speech
Path("convert.mp3").write_bytes(b"".join(speech.convert("heart", text=text)))
Path("stream.mp3").write_bytes(b"".join(speech.stream("heart", text=text)))
Path("opus.opus").write_bytes(b"".join(speech.convert("heart", text=text, output_format="opus_48000_64")))
timed = speech.convert_with_timestamps("heart", text=text)
Path("timed.mp3").write_bytes(base64.b64decode(timed.audio_base_64))
pieces = speech.stream_with_timestamps("heart", text=text)
Path("timed_stream.mp3").write_bytes(b"".join(base64.b64decode(piece.audio_base_64) for piece in pieces))
lists = {
    "voices": [voice.name for voice in client.voices.get_all().voices],
    "found": [voice.voice_id for voice in client.voices.search().voices],
    "models": [model.model_id for model in client.models.list()],
    "tier": client.user.subscription.get().tier,
}
print(json.dumps(lists))
