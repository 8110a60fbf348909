"""Files of the six formats, decoded and compared with pcm."""

from dataclasses import dataclass
from itertools import pairwise

from vivavoce_conformance.rules import GUIDE, OPENAI, PRACTICE, Group
from vivavoce_conformance.sound import (
    NoDecoder,
    Samples,
    Undecodable,
    decode,
    level_db,
    likeness,
    parse_wave,
    samples_of,
    seconds,
)
from vivavoce_conformance.target import TEXT, Answer, Failed, Reference, Skipped, Target

FORMATS = Group("formats", "audio files, decoded and compared with pcm")
UNKNOWN_SIZES = (0, 0x7FFFFFFF, 0xFFFFFFFF)
"""Sizes that streamed WAV files state because their length is not known yet."""
UNKNOWN_SIZE_FROM = 0x7FFF0000
"""Some subtract the bytes of the header from such a size."""
MAX_LAG_S = 0.06
SILENT_DB = -60.0
GUIDE_PCM = f"{GUIDE}: pcm is 24 kHz, 16-bit signed, little-endian"


@dataclass(frozen=True, slots=True)
class Rules:
    """Properties of a file of one format. `slack_s` is the most that its codec may add at both ends together."""

    types: tuple[str, ...]
    magic: tuple[bytes, ...]
    slack_s: float
    correlation: float
    source: str


RULES = {
    "mp3": Rules(("audio/mpeg", "audio/mp3"), (b"ID3", b"\xff"), 0.25, 0.9, "RFC 3003"),
    "opus": Rules(("audio/ogg", "audio/opus"), (b"OggS",), 0.25, 0.9, "RFC 7845"),
    "aac": Rules(("audio/aac", "audio/aacp", "audio/x-aac"), (b"ID3", b"\xff"), 0.25, 0.9, "ISO/IEC 13818-7, ADTS"),
    "flac": Rules(("audio/flac", "audio/x-flac"), (b"fLaC",), 0.01, 0.99, "RFC 9639"),
    "wav": Rules(("audio/wav", "audio/x-wav", "audio/wave", "audio/vnd.wave"), (b"RIFF",), 0.01, 0.99, "RFC 2361"),
}


async def speech_as(target: Target, name: str) -> tuple[Answer, Reference]:
    """The reference's text as a file of this format. Raises Failed."""
    reference = await target.reference()
    answer = await target.speak(response_format=name, **reference.fields)
    return answer, reference


async def decoded(body: bytes, name: str) -> Samples:
    """Raises Failed, Skipped."""
    try:
        return await decode(body, name)
    except Undecodable as error:
        raise Failed(f"{name}: {error}") from error
    except NoDecoder as error:
        raise Skipped(str(error)) from error


def compare(samples: Samples, reference: Reference, name: str) -> None:
    """Raises Failed unless this is the reference's speech, or as long and loud where speech is not repeated."""
    rules = RULES[name]
    has_s, wanted_s = seconds(samples), seconds(reference.samples)
    has_db, wanted_db = level_db(samples), level_db(reference.samples)
    if not reference.repeats:
        if not 0.5 * wanted_s <= has_s <= 2 * wanted_s + rules.slack_s:
            raise Failed(f"{name} is {has_s:.2f} s long, pcm of the same text {wanted_s:.2f} s")
        if abs(has_db - wanted_db) > 12:
            raise Failed(f"{name} has {has_db:.1f} dBFS, pcm of the same text {wanted_db:.1f}")
        return
    if not wanted_s - 0.03 <= has_s <= wanted_s + rules.slack_s:
        raise Failed(f"{name} is {has_s:.3f} s long, pcm of the same speech {wanted_s:.3f} s")
    if abs(has_db - wanted_db) > 1.5:
        raise Failed(f"{name} has {has_db:.1f} dBFS, pcm of the same speech {wanted_db:.1f}")
    alike = likeness(samples, reference.samples)
    if alike.correlation < rules.correlation:
        raise Failed(f"{name} is other sound than pcm: correlation {alike.correlation:.2f} at best")


def add_format(name: str) -> None:
    rules = RULES[name]

    async def content(target: Target) -> None:
        answer, reference = await speech_as(target, name)
        if not answer.body.startswith(rules.magic):
            raise Failed(f"{name} begins with {answer.body[:8]!r}")
        compare(await decoded(answer.body, name), reference, name)

    async def media_type(target: Target) -> None:
        answer = await target.speak(response_format=name)
        if answer.media_type not in rules.types:
            raise Failed(f"{name} has the type {answer.media_type or 'none'} instead of {rules.types[0]}")

    FORMATS.add(name, "must", f"{OPENAI}; {rules.source}", f"{name} decodes to the speech of pcm, all of it", content)
    FORMATS.add(f"{name}_type", "must", rules.source, f"the Content-Type of {name} is {rules.types[0]}", media_type)


def add_delay(name: str) -> None:
    async def delay(target: Target) -> None:
        answer, reference = await speech_as(target, name)
        samples = await decoded(answer.body, name)
        if not reference.repeats:
            raise Skipped("the server does not repeat its speech, so that no shift can be measured")
        lag_s = likeness(samples, reference.samples).lag_s
        if abs(lag_s) > MAX_LAG_S:
            raise Failed(f"the speech of {name} begins {lag_s * 1000:.0f} ms later than that of pcm")

    title = f"the encoder of {name} delays the speech by at most {MAX_LAG_S * 1000:.0f} ms"
    FORMATS.add(f"{name}_delay", "should", PRACTICE, title, delay)


@FORMATS.check("must", GUIDE_PCM, "pcm is 16-bit samples without a header")
async def pcm(target: Target) -> None:
    body = (await target.speak(input=TEXT, response_format="pcm")).body
    if body[:4] in (b"RIFF", b"OggS", b"fLaC") or body[:3] == b"ID3":
        raise Failed(f"pcm begins with the header of a file: {body[:8]!r}")
    if len(body) % 2:
        raise Failed(f"pcm has {len(body)} bytes, which is no whole number of 16-bit samples")
    if level_db(samples_of(body)) < SILENT_DB:
        raise Failed("pcm is silent")
    # In the wrong byte order, the low bytes dominate: neighbours then differ more than the samples themselves.
    swapped = samples_of(body)
    swapped.byteswap()
    if roughness(swapped) < roughness(samples_of(body)):
        raise Failed("pcm is no little-endian speech: the other byte order is smoother")


def roughness(samples: Samples) -> float:
    """Mean square of the differences of neighbours over that of the samples: 2 for noise, far less for speech."""
    steps = sum((later - sooner) ** 2 for sooner, later in pairwise(samples))
    return steps / (sum(value * value for value in samples) or 1)


@FORMATS.check("must", GUIDE_PCM, "pcm has 24,000 samples a second: as many as wav says")
async def pcm_rate(target: Target) -> None:
    answer, reference = await speech_as(target, "wav")
    wav_s = seconds(await decoded(answer.body, "wav"))
    pcm_s = seconds(reference.samples)
    slack = 0.02 if reference.repeats else 0.35
    if not (1 - slack) * wav_s <= pcm_s <= (1 + slack) * wav_s:
        raise Failed(f"pcm is {pcm_s:.2f} s at 24 kHz, wav of the same text {wav_s:.2f} s")


@FORMATS.check("must", GUIDE_PCM, "the Content-Type of pcm is audio")
async def pcm_type(target: Target) -> None:
    answer = await target.speak(response_format="pcm")
    if not answer.media_type.startswith("audio/") and answer.media_type != "application/octet-stream":
        raise Failed(f"pcm has the type {answer.media_type or 'none'} instead of audio/pcm")
    if answer.media_type in {kind for rules in RULES.values() for kind in rules.types}:
        raise Failed(f"pcm has the type {answer.media_type}, by which players choose a decoder")


@FORMATS.check("must", OPENAI, "mp3 is the default of response_format")
async def default(target: Target) -> None:
    answer = await target.speak()
    if not answer.body.startswith(RULES["mp3"].magic):
        raise Failed(f"without response_format: {answer.media_type} that begins with {answer.body[:4]!r}")


for _name in RULES:
    add_format(_name)
for _name in ("mp3", "opus", "aac"):
    add_delay(_name)


@FORMATS.check(
    "must", "Microsoft and IBM, RIFF WAVE; common readers", "the sizes of a WAV are right, or say that they are unknown"
)
async def wav_sizes(target: Target) -> None:
    body = (await target.speak(response_format="wav")).body
    try:
        wave = parse_wave(body)
    except Undecodable as error:
        raise Failed(f"wav: {error}") from error
    held = len(wave.data)
    is_unknown = wave.data_bytes in UNKNOWN_SIZES or wave.data_bytes >= UNKNOWN_SIZE_FROM
    if not is_unknown and wave.data_bytes > held:  # chunks of metadata may stand behind the samples
        raise Failed(f"the header promises {wave.data_bytes} bytes of samples, and {held} came")
    if is_unknown or wave.riff_bytes in UNKNOWN_SIZES or wave.riff_bytes >= UNKNOWN_SIZE_FROM:
        return
    if wave.riff_bytes != len(body) - 8:
        raise Failed(f"the header promises {wave.riff_bytes + 8} bytes, and {len(body)} came")


@FORMATS.check("extension", PRACTICE, "a whole WAV states its exact length, in its header and in Content-Length")
async def wav_whole(target: Target) -> None:
    if target.dialect.whole is None:
        raise Skipped("OpenAI's API has no whole answers; --server names a kind of server that has them")
    answer = await target.speak(response_format="wav", **target.dialect.whole)
    if answer.headers.get("content-length") != str(len(answer.body)):
        raise Failed(f"Content-Length is {answer.headers.get('content-length')}, and {len(answer.body)} bytes came")
    wave = parse_wave(answer.body)
    if wave.riff_bytes != len(answer.body) - 8 or not 0 < wave.data_bytes <= len(wave.data):
        raise Failed(f"the header promises {wave.riff_bytes + 8} and {wave.data_bytes} bytes of {len(answer.body)}")
