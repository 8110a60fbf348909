"""Stored voices through the client package and `vivavoce voices`."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from vivavoce_client import ApiError, AsyncClient, Client, NewVoice
from vivavoce_client.__main__ import main
from vivavoce_engine import VoiceStore
from vivavoce_engine.fake_runner import EMBEDDING_SIZE

from tests.support.cloning import recording, storing_server
from tests.support.live_server import LiveServer

CONSENT = "I agree."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "voices"


@pytest.fixture
def server(folder: Path) -> Iterator[LiveServer]:
    with storing_server(folder) as running:
        yield running


def test_the_client_stores_lists_and_deletes(server: LiveServer, folder: Path) -> None:
    with Client(server.url) as client:
        stored = client.add_voice(NewVoice("Ada", CONSENT, audio=recording(0), ref_text="It's fine."))
        assert (stored.id, stored.name) == ("ada", "Ada")
        (voice,) = [voice for voice in client.voices() if voice.created_at is not None]
        assert (voice.id, voice.model, voice.created_at) == ("ada", "fake", stored.created_at)
        kept = VoiceStore(folder).get("ada")
        assert kept is not None
        assert (kept.consent, kept.reference.text) == (CONSENT, "It's fine.")
        client.add_voice(NewVoice("bob", CONSENT, embedding=[0.5] * EMBEDDING_SIZE, model="fake"))
        client.add_voice(NewVoice("mix", CONSENT, mix="heart(1)+bob(1)"))
        client.delete_voice("ada")
        assert VoiceStore(folder).names() == ["bob", "mix"]
        with pytest.raises(ApiError) as refused:
            client.delete_voice("ada/../bob")
        assert refused.value.status == 404


async def test_the_async_client_does_too(server: LiveServer, folder: Path) -> None:
    async with AsyncClient(server.url) as client:
        with pytest.raises(ApiError) as refused:
            await client.add_voice(NewVoice("ada", " ", audio=recording(0)))
        assert (refused.value.status, refused.value.param) == (400, "consent")
        assert (await client.add_voice(NewVoice("ada", CONSENT, audio=recording(0)))).id == "ada"
        assert [voice.id for voice in await client.voices()][-1] == "ada"
        await client.delete_voice("ada")
        assert VoiceStore(folder).names() == []


def test_the_command(server: LiveServer, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    audio, numbers = tmp_path / "a.wav", tmp_path / "e.json"
    audio.write_bytes(recording(0))
    numbers.write_text(json.dumps([3] * EMBEDDING_SIZE))
    url = ["--url", server.url]
    assert main(["voices", *url, "add", "ada", str(audio), "--consent", CONSENT, "--ref-text", "Hi."]) == 0
    assert (
        main(["voices", "add", "bob", "--embedding", str(numbers), "--consent", CONSENT, "--model", "fake", *url]) == 0
    )
    assert main(["voices", "blend", "both", "heart(1)+bob(1)", *url]) == 0
    printed = capsys.readouterr()
    assert printed.out.split() == ["ada", "bob", "both"]
    assert printed.err == ""
    assert main(["voices", *url, "add", "odd", str(audio), "--consent", CONSENT, "--ref-text", "la " * 100]) == 0
    printed = capsys.readouterr()
    assert printed.out.split() == ["odd"]
    assert printed.err.startswith("vivavoce: ref_text_mismatch: ref_text is most likely not what is said")
    assert main(["voices", *url, "delete", "odd"]) == 0
    capsys.readouterr()
    both = VoiceStore(folder).get("both")
    assert both is not None
    assert both.reference.embedding.tolist() == [2.0] * EMBEDDING_SIZE
    assert "heart(1)+bob(1)" in both.consent
    assert main(["voices", "list", *url]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert main(["voices", *url]) == 0
    assert capsys.readouterr().out.splitlines() == listed
    assert listed[2:] == [f"{name}\tfake\tstored\t-\t-" for name in ("ada", "bob", "both")]
    assert main(["voices", "delete", "ada", "bob", *url]) == 0
    assert VoiceStore(folder).names() == ["both"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["add", "ada", "no-such-file.wav", "--consent", "x"], "no-such-file.wav"),
        (["add", "ada", "--consent", "x"], "one of them"),
        (["add", "ada", __file__, "--consent", "x"], "no audio file"),
        (["add", "ada", "--embedding", __file__, "--consent", "x"], "is not JSON"),
        (["blend", "mix", "heart(1)+nobody(1)"], "there is no voice 'nobody'"),
        (["delete", "nobody"], "no stored voice 'nobody'"),
    ],
)
def test_mistakes_are_one_line(
    server: LiveServer, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["voices", *arguments, "--url", server.url]) == 1
    message = capsys.readouterr().err
    assert words in message
    assert len(message.splitlines()) == 1


def test_consent_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["voices", "add", "ada", "a.wav"])
    assert ended.value.code == 2
    assert "--consent" in capsys.readouterr().err
