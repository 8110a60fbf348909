"""Hostile HTTP requests: bodies that cost more than they weigh, and strangers who should not get that far."""

import asyncio
import json
from functools import cache

from tests.attack.target import BATCH, SPEECH, VOICES, Target, encoded
from tests.support.recordings import encode, voice_like, wav

MIB = 2**20
CLAIMED_SAMPLES = 85_000_000
PAUSES = "Hi." + "[pause:10s]" * 370
BOUNDARY = "attack"


@cache
def endless_mp4() -> bytes:
    """An mp4 file of a second whose tables claim hours of samples of one byte each."""
    file = bytearray(encode(voice_like(1, 1.0, 16000), "mp4", "aac", 16000))
    sizes, times = file.index(b"stsz"), file.index(b"stts")
    file[sizes + 8 : sizes + 16] = (1).to_bytes(4, "big") + CLAIMED_SAMPLES.to_bytes(4, "big")
    file[times + 12 : times + 16] = CLAIMED_SAMPLES.to_bytes(4, "big")
    return bytes(file)


def form(**parts: bytes) -> bytes:
    """A multipart body. A part named audio_sample is a file."""
    body = bytearray()
    for name, value in parts.items():
        file = '; filename="a.wav"' if name == "audio_sample" else ""
        body += (
            f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + value + b"\r\n"
        )
    return bytes(body) + f"--{BOUNDARY}--\r\n".encode()


FORM = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
VOICE = {"name": b"stolen", "consent": b"I agree."}


async def pauses(target: Target) -> None:
    await target.ask_json(SPEECH, input=PAUSES, voice="heart", response_format="wav", sample_rate=48000, stream=False)


async def batches_of_pauses(target: Target) -> None:
    items = [{"input": PAUSES}] * 32
    await target.ask_json(BATCH, items=items, voice="heart", response_format="wav", sample_rate=48000)


async def batches_of_nothing(target: Target) -> None:
    await target.ask(BATCH, b'{"voice":"heart","items":[' + b"{}," * (MIB // 3) + b"{}]}")


async def batches_of_many(target: Target) -> None:
    await target.ask_json(BATCH, items=[{"input": "Hi."}] * 100_000, voice="heart")


async def embeddings_of_nothing(target: Target) -> None:
    await target.ask(SPEECH, b'{"input":"a","speaker_embedding":[' + b"{}," * (MIB // 3) + b"{}]}")


async def embeddings_without_end(target: Target) -> None:
    await target.ask(SPEECH, b'{"input":"a","speaker_embedding":[' + b"{}," * (15 * MIB // 3) + b"{}]}")


async def embeddings_of_numbers(target: Target) -> None:
    await target.ask(SPEECH, b'{"input":"a","speaker_embedding":[' + b"0.5," * (4 * MIB // 4) + b"1]}")


async def mixes_without_end(target: Target) -> None:
    await target.ask_json(SPEECH, input="Hi.", voice="+".join(["heart(1)"] * 100_000))


async def json_without_a_key(target: Target) -> None:
    await target.ask(
        SPEECH, b'{"input":"Hi.","voice":"heart","normalize":[' + b'"a",' * (15 * MIB // 4) + b'"a"]}', False
    )


async def large_json(target: Target) -> None:
    await target.ask(SPEECH, json.dumps({"voice": "heart", "input": "a " * (7 * MIB)}).encode())


@cache
def object_of_many_keys() -> bytes:
    return json.dumps({f"k{number}": 0 for number in range(500_000)}).encode()


async def many_keys(target: Target) -> None:
    await target.ask(SPEECH, object_of_many_keys())


async def deep_json(target: Target) -> None:
    await target.ask(SPEECH, b"[" * 100_000)
    await target.ask(SPEECH, b'{"input":' * 100_000)


async def long_numbers(target: Target) -> None:
    await target.ask(SPEECH, b'{"input":"Hi.","voice":"heart","seed":' + b"9" * MIB + b"}")


async def texts_at_the_limit(target: Target) -> None:
    """Texts that make reading slow, with all stages on. They are refused, or waited for by nobody."""
    for text in ("_" * 4096, "$1." * 1365, "| a " * 1024, "1/" * 2048, "\u201c" * 4096, "e" + "\u0301" * 4095):
        fields = {"input": text, "voice": "heart", "normalize": True, "return": "text"}
        await target.ask(SPEECH, json.dumps(fields).encode())


async def forms_without_a_key(target: Target) -> None:
    await target.ask(VOICES, form(**VOICE, audio_sample=b"\0" * (9 * MIB)), False, FORM)


@cache
def form_of_many_parts() -> bytes:
    return form(**{f"part{number}": b"" for number in range(20_000)})


async def forms_of_many_parts(target: Target) -> None:
    await target.ask(VOICES, form_of_many_parts(), headers=FORM)


async def forms_of_other_sites(target: Target) -> None:
    headers = {**FORM, "Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
    await target.ask(VOICES, form(**VOICE, audio_sample=wav(voice_like(2, 3.0))), headers=headers)


async def names_of_other_hosts(target: Target) -> None:
    headers = {"Host": "evil.example:80", "Origin": "http://evil.example:80"}
    await target.ask(SPEECH, b'{"input":"Hi.","voice":"heart"}', headers=headers)


async def bombs_as_recordings(target: Target) -> None:
    await target.ask_json(SPEECH, input="Hi.", ref_audio=encoded(endless_mp4()), task_type="Base")
    await target.ask(VOICES, form(**VOICE, audio_sample=endless_mp4()), headers=FORM)


async def many_recordings(target: Target) -> None:
    recording = encoded(encode(voice_like(3, 3.0, 16000), "mp3", "libmp3lame", 16000))
    await asyncio.gather(*(target.ask_json(SPEECH, input="Hi.", ref_audio=recording) for _ in range(8)))


async def forged_lines(target: Target) -> None:
    async with target.bare() as bare:
        await target.send(bare, target.head("GET", "/x%0aFORGED%1b[31m%0d" + "a" * 10_000))
        await target.read_answer(bare)
