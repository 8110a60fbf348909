"""ElevenLabs' routes, driven by ElevenLabs' own client."""

import base64
import io
import json
from collections.abc import Iterator
from typing import Any

import elevenlabs
import httpx
import numpy as np
import pytest
import soundfile
from elevenlabs.core.api_error import ApiError
from pydantic import SecretStr
from vivavoce_server import ServerConfig
from vivavoce_server.elevenlabs_options import OUTPUT_FORMATS
from vivavoce_server.reading import WARNINGS_HEADER

from tests.support.live_server import LiveServer, fake_engine, live_server
from tests.support.live_socket import pcm_of

KEY = "sk-right"
OWN_ID = "bIHbv24MWmeRgasZH58o"
TEXT = "Hello there."
SPOKEN_S = 0.08 * len(TEXT)


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    config = ServerConfig(api_keys=(SecretStr(KEY),), voice_aliases=(f"{OWN_ID}=michael", "absent=nobody"))
    with live_server({"first": fake_engine(), "second": fake_engine()}, config) as running:
        yield running


def client_of(server: LiveServer, http: httpx.Client, key: str = KEY) -> Any:
    return elevenlabs.ElevenLabs(api_key=key, base_url=server.url, httpx_client=http)


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with httpx.Client() as http:
        yield http


@pytest.fixture
def client(server: LiveServer, http: httpx.Client) -> Any:
    return client_of(server, http)


def post(server: LiveServer, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
    url = f"{server.url}/v1/text-to-speech/{path}"
    return httpx.post(url, json={"text": TEXT, "seed": 5, **(body or {})}, headers={"xi-api-key": KEY})


def test_its_own_client_hears_speech(client: Any) -> None:
    whole = b"".join(client.text_to_speech.convert("heart", text=TEXT, seed=5, output_format="pcm_24000"))
    assert whole == pcm_of(5, len(TEXT))
    streamed = b"".join(client.text_to_speech.stream("heart", text=TEXT, seed=5, output_format="pcm_24000"))
    assert streamed == whole


def test_its_own_client_hears_speech_with_times(client: Any) -> None:
    options = {"text": TEXT, "seed": 5, "output_format": "pcm_24000"}
    whole = client.text_to_speech.convert_with_timestamps("heart", **options)
    assert base64.b64decode(whole.audio_base_64) == pcm_of(5, len(TEXT))
    for alignment in (whole.alignment, whole.normalized_alignment):
        assert "".join(alignment.characters) == TEXT
        assert (
            alignment.character_start_times_seconds[6] == 0.48
        )  # the blank between both words, at a frame a character
        assert alignment.character_end_times_seconds[-1] == 0.96
    chunks = list(client.text_to_speech.stream_with_timestamps("heart", **options))
    assert len(chunks) > 1
    assert b"".join(base64.b64decode(chunk.audio_base_64) for chunk in chunks) == pcm_of(5, len(TEXT))
    alignments = [chunk.alignment for chunk in chunks if chunk.alignment]
    assert [char for each in alignments for char in each.characters] == whole.alignment.characters
    starts = [at_s for each in alignments for at_s in each.character_start_times_seconds]
    assert starts == whole.alignment.character_start_times_seconds


def test_the_objects_come_one_a_line(server: LiveServer) -> None:
    lines = post(server, "heart/stream/with-timestamps").text.splitlines()
    assert [sorted(json.loads(line)) for line in lines] == [
        ["alignment", "audio_base64", "normalized_alignment"]
    ] * len(lines)


@pytest.mark.parametrize("name", OUTPUT_FORMATS)
def test_every_output_format(server: LiveServer, name: str) -> None:
    answer = post(server, f"heart?output_format={name}")
    kind, rate, *kbits = name.split("_")
    assert answer.headers["content-type"].startswith("audio/")
    raw = {"pcm": "PCM_16", "ulaw": "ULAW", "alaw": "ALAW"}.get(kind)
    how: dict[str, Any] = {"format": "RAW", "subtype": raw, "samplerate": int(rate), "channels": 1} if raw else {}
    samples, decoded_rate = soundfile.read(io.BytesIO(answer.content), dtype="float32", **how)
    assert decoded_rate == int(rate)
    assert len(samples) / decoded_rate == pytest.approx(SPOKEN_S, abs=0.001)
    middle = samples[len(samples) // 4 : -len(samples) // 4]
    assert np.sqrt(np.mean(middle**2)) == pytest.approx(0.3 / np.sqrt(2), rel=0.1)
    if kind == "mp3":
        bits_per_s = len(answer.content) * 8 / (len(samples) / decoded_rate)
        # The file also holds the encoder's delay and the padding, about 50 ms that are not heard.
        assert bits_per_s == pytest.approx(1000 * int(kbits[0] if kbits else 128), rel=0.12)


def test_the_bit_rate_of_opus_is_the_one_asked_for(server: LiveServer) -> None:
    low, high = (len(post(server, f"heart?output_format=opus_48000_{k}").content) for k in (32, 192))
    assert low < high / 1.5


def test_the_usual_format_is_mp3(server: LiveServer) -> None:
    answer = post(server, "heart", {"model_id": "eleven_multilingual_v2", "voice_settings": None})
    assert answer.headers["content-type"] == "audio/mpeg"
    assert soundfile.info(io.BytesIO(answer.content)).samplerate == 44100


def test_options_without_a_meaning_are_ignored(server: LiveServer) -> None:
    body = {
        "model_id": "tts-1",
        "language_code": "en-US",
        "voice_settings": {"stability": 0.5, "use_speaker_boost": True, "speed": 2.0},
        "previous_text": "Before.",
        "next_request_ids": [],
        "pronunciation_dictionary_locators": [],
        "apply_language_text_normalization": False,
        "use_pvc_as_ivc": False,
    }
    answer = post(
        server, "heart/stream?output_format=pcm_24000&optimize_streaming_latency=3&enable_logging=false", body
    )
    assert len(answer.content) == pytest.approx(len(pcm_of(5, len(TEXT))) / 2, abs=4800)


@pytest.mark.parametrize(
    ("path", "body", "param", "code"),
    [
        ("heart?output_format=mp3_8000_32", {}, "output_format", "invalid_value"),
        ("nobody", {}, "voice_id", "voice_not_found"),
        ("heart", {"language_code": "xx"}, "language_code", "invalid_value"),
        ("heart", {"model_id": "other"}, "model_id", "model_not_found"),
        ("heart", {"text": None}, "text", "invalid_value"),
        ("heart", {"text": " "}, "text", "nothing_to_speak"),
        ("heart", {"text": "..."}, "text", "nothing_to_speak"),
        ("heart", {"seed": -1}, "seed", "invalid_value"),
        ("heart", {"apply_text_normalization": "yes"}, "apply_text_normalization", "invalid_value"),
        ("heart", {"voice_settings": {"speed": 9}}, "voice_settings", "invalid_value"),
    ],
)
def test_faults_are_told(server: LiveServer, path: str, body: dict[str, Any], param: str, code: str) -> None:
    answer = post(server, path, body)
    assert answer.status_code in (400, 404)
    assert (answer.json()["error"]["param"], answer.json()["error"]["code"]) == (param, code)


def test_a_voice_of_elevenlabs_is_replaced_with_a_warning(server: LiveServer) -> None:
    replaced = post(server, "hpp4J3VqNfWAUOO0d1Us")
    assert replaced.status_code == 200
    (warning,) = json.loads(replaced.headers[WARNINGS_HEADER])
    assert warning == (
        "There is no voice 'hpp4J3VqNfWAUOO0d1Us'; 'heart' speaks. The setting voice_aliases chooses another"
    )
    assert WARNINGS_HEADER not in post(server, OWN_ID).headers
    absent = post(server, "absent")
    assert (absent.status_code, absent.json()["error"]["code"]) == (400, "voice_not_found")


def test_its_own_client_lists_voices(client: Any) -> None:
    listed = {voice.voice_id: voice.name for voice in client.voices.get_all().voices}
    assert listed["heart"] == "heart"
    assert listed[OWN_ID] == "michael"
    assert "absent" not in listed
    pages, token = [], None
    while True:
        page = client.voices.search(page_size=1, next_page_token=token)
        pages += page.voices
        assert (page.total_count, page.has_more) == (len(listed), len(pages) < len(listed))
        token = page.next_page_token
        if not page.has_more:
            break
    assert {voice.voice_id: voice.name for voice in pages} == listed
    assert [voice.voice_id for voice in client.voices.search(search="mich").voices] == ["michael", OWN_ID]
    assert client.voices.get("heart").name == "heart"
    assert client.voices.settings.get("heart").speed == client.voices.settings.get_default().speed == 1.0
    with pytest.raises(ApiError) as missing:
        client.voices.get("nobody")
    assert missing.value.status_code == 404


def test_its_own_client_lists_models(server: LiveServer, client: Any) -> None:
    models = client.models.list()
    assert [model.model_id for model in models] == ["first", "second"]
    assert all(model.can_do_text_to_speech for model in models)
    assert "en" in [language.language_id for language in models[0].languages]
    as_openai = httpx.get(f"{server.url}/v1/models", headers={"Authorization": f"Bearer {KEY}"}).json()
    assert [model["id"] for model in as_openai["data"]] == ["first", "second"]


def test_its_own_client_asks_for_its_account(server: LiveServer, client: Any, http: httpx.Client) -> None:
    assert client.user.get().user_id == "key 1"
    subscription = client.user.subscription.get()
    assert (subscription.status, subscription.character_count, subscription.voice_slots_used) == ("active", 0, 0)
    with pytest.raises(ApiError) as refused:
        client_of(server, http, "sk-wrong").user.get()
    assert refused.value.status_code == 401


def test_wrong_aliases_are_named() -> None:
    with pytest.raises(ValueError, match="must be NAME=VOICE, not 'narrator'"):
        ServerConfig(voice_aliases=("narrator",))
