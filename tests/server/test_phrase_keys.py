"""Digests of requests: values that differ have other digests, whatever their form; what has no form is refused."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from pydantic import SecretStr
from vivavoce_engine import Sampling, SamplingParams, UtteranceOptions, VoiceReference
from vivavoce_server import ServerConfig
from vivavoce_server.phrases.keys import UNHEARD_OPTIONS, UNHEARD_SETTINGS, digest_of, phrase_key, settings_digest

ONES = np.ones(4, np.float32)
DIFFERENT: list[object] = [
    *(None, True, False, 0, 1, 0.0, -0.0, 1.0, "", "1", b"1", "None", [], [[]], ["a", "b"], ["ab"], [["a"], "b"]),
    *({}, {"a": 1}, {"a": "1"}, {"a": 1, "b": 2}, ["a", 1], "\ud800", "str 1:a"),
    *(ONES, ONES.astype(np.float64), ONES.reshape(2, 2), ONES.tobytes(), np.array([1, 1, 1, np.nextafter(1, 2)])),
    *(VoiceReference(ONES), VoiceReference(ONES * 2), VoiceReference(ONES, np.zeros((4, 1), np.int16), "a")),
    *(SamplingParams(), SamplingParams(top_k=51), Sampling(), UtteranceOptions()),
]


def test_values_that_differ_have_other_digests() -> None:
    digests = [digest_of(value) for value in DIFFERENT]
    assert len(set(digests)) == len(DIFFERENT)
    assert [digest_of(value) for value in DIFFERENT] == digests
    assert digest_of("a", "b") != digest_of("ab")


def test_an_array_counts_by_its_values() -> None:
    assert digest_of(np.arange(8.0)[::2]) == digest_of(np.array([0.0, 2.0, 4.0, 6.0]))
    assert digest_of({"b": 1, "a": 2}) == digest_of({"a": 2, "b": 1})


def test_an_object_counts_by_its_name_and_one_without_is_refused() -> None:
    class Method:
        def __init__(self, name: str) -> None:
            self.name = name

    @dataclass
    class Mark:
        method: Method

    assert digest_of(Mark(Method("one"))) == digest_of(Mark(Method("one"))) != digest_of(Mark(Method("two")))
    with pytest.raises(TypeError, match="object"):
        digest_of(object())


def test_options_that_are_not_heard_are_not_in_the_key() -> None:
    options = UtteranceOptions(speaker="heart", seed=1)
    key = phrase_key("model", [(options, "Hello.")])
    unheard = UtteranceOptions(
        speaker="heart", seed=1, client="a", max_wait_s=1.0, endless_frames=9, following=1.0, silence_s=2.0
    )
    assert len(UNHEARD_OPTIONS) == 5
    assert phrase_key("model", [(unheard, "Hello.")]) == key
    assert phrase_key("model", [(replace(options, first_chunk_frames=2), "Hello.")]) != key
    assert phrase_key("other", [(options, "Hello.")]) != key
    assert phrase_key("model", [(options, "Hello"), (options, ".")]) != key


def test_settings_count_unless_no_byte_depends_on_them() -> None:
    assert ServerConfig.model_fields.keys() >= UNHEARD_SETTINGS
    plain = settings_digest(ServerConfig())
    assert settings_digest(ServerConfig(host="::1", port=9, cache_size_mb=7, model=("fake",))) == plain
    # Servers that share a folder, behind one proxy or on the way from one to another, give a file the same tag.
    behind_a_proxy = ServerConfig(uds=Path("a.sock"), uds_mode="600", root_path="/speech", trusted_proxies=("*",))
    by_itself = ServerConfig(
        ssl_certfile=Path("a.pem"),
        ssl_keyfile=Path("b.pem"),
        ssl_keyfile_password=SecretStr("p"),
        ssl_ca_certs=Path("c.pem"),
        allowed_hosts=("a.example",),
        cors_origins=("*",),
        config=Path("a.toml"),
        otlp_endpoint="http://localhost:4318",
    )
    assert settings_digest(behind_a_proxy) == settings_digest(by_itself) == plain
    assert settings_digest(ServerConfig(leading_silence="keep")) != plain
