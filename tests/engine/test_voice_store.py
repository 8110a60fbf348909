"""Stored voices: whole or absent, back after a restart, shared by servers, bounded."""

import errno
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from vivavoce_engine import NotServing, Rejected, StoredVoice, StoreFailed, StoreFull, VoiceReference, VoiceStore
from vivavoce_engine.voices import store as module
from vivavoce_engine.voices.lru import ByteLimitedCache
from vivavoce_engine.voices.store import MAX_FILE_BYTES, MAX_TEXT_CHARS, STALE_S, serialize_voice

EMBEDDING = np.linspace(-1, 1, 64, dtype=np.float32)
CODES = np.arange(32, dtype=np.int16).reshape(2, 16)


def voice(name: str = "anna", codes: bool = True, consent: str = "I agree. 同意します") -> StoredVoice:
    reference = VoiceReference(EMBEDDING, CODES, "Said, in “words”.") if codes else VoiceReference(EMBEDDING)
    return StoredVoice(name, 1_700_000_000, consent, reference)


def assert_same(actual: StoredVoice | None, expected: StoredVoice) -> None:
    assert actual is not None
    facts = ("name", "created_at_s", "consent")
    assert all(getattr(actual, fact) == getattr(expected, fact) for fact in facts)
    assert actual.reference.text == expected.reference.text
    assert np.array_equal(actual.reference.embedding, expected.reference.embedding)
    if expected.reference.codes is None:
        assert actual.reference.codes is None
    else:
        assert actual.reference.codes is not None
        assert np.array_equal(actual.reference.codes, expected.reference.codes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "deep/voices"


@pytest.fixture
def store(folder: Path) -> VoiceStore:
    return VoiceStore(folder)


# ---- kept


@pytest.mark.parametrize("codes", [True, False])
def test_a_voice_survives_a_restart(folder: Path, codes: bool) -> None:
    VoiceStore(folder).add(voice(codes=codes))
    again = VoiceStore(folder)
    assert again.names() == ["anna"]
    assert_same(again.get("anna"), voice(codes=codes))
    assert_same(again.get("ANNA"), voice(codes=codes))


def test_the_second_use_of_a_voice_reads_nothing(store: VoiceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add(voice())
    first = store.get("anna")
    monkeypatch.setattr(module, "read_voice", None)
    assert store.get("anna") is first is not None
    assert store.all() == [first]


def test_voices_are_listed_in_order(store: VoiceStore) -> None:
    for name in ("zoe", "anna", "max-2", "9"):
        store.add(voice(name))
    assert store.names() == ["9", "anna", "max-2", "zoe"]
    assert [found.name for found in store.all()] == store.names()


def test_deleting(store: VoiceStore) -> None:
    store.add(voice())
    store.get("anna")
    assert store.delete("Anna")
    assert not store.delete("anna")
    assert store.get("anna") is None
    assert store.names() == []
    assert store.cached_bytes == 0


# ---- shared


def test_two_servers_on_one_folder_see_each_others_voices(folder: Path) -> None:
    here, there = VoiceStore(folder), VoiceStore(folder)
    here.add(voice())
    assert_same(there.get("anna"), voice())
    there.delete("anna")
    assert here.get("anna") is None
    other = voice("anna", codes=False, consent="another day")
    there.add(other)
    assert_same(here.get("anna"), other)
    assert [found.consent for found in here.all()] == ["another day"]


def test_of_many_servers_one_gets_the_name(folder: Path) -> None:
    def try_to_add(number: int) -> bool:
        try:
            VoiceStore(folder).add(voice(consent=f"from {number}"))
        except Rejected as refusal:
            return refusal.param != "name"
        return True

    with ThreadPool(8) as servers:
        assert sum(servers.map(try_to_add, range(32))) == 1
    assert os.listdir(folder) == ["anna.safetensors"]


# ---- atomic


def test_a_crash_while_writing_leaves_no_voice_behind(
    store: VoiceStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreFailed, match="no space"):
        store.add(voice())
    assert os.listdir(folder) == []
    assert store.get("anna") is None


def test_what_a_dead_server_left_half_written_is_no_voice_and_goes_away(store: VoiceStore, folder: Path) -> None:
    for name, age_s in ((".old.partial", STALE_S + 60), (".new.partial", 0)):
        (folder / name).write_bytes(b"half")
        os.utime(folder / name, (time.time() - age_s,) * 2)
    assert store.names() == []
    store.add(voice())
    assert sorted(os.listdir(folder)) == [".new.partial", "anna.safetensors"]


# ---- bounded


def open_handles() -> set[tuple[str, str]]:
    """Number and target of each file, socket and pipe that this process has open."""
    handles = set()
    for entry in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing itself
            handles.add((entry, os.readlink(f"/proc/self/fd/{entry}")))
    return handles


def test_two_thousand_uploads_and_deletes_leave_memory_and_disk_where_they_were(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # the disk's own time is not the point
    store, witness = VoiceStore(folder, max_voices=3, cache_bytes=4096), VoiceStore(folder, cache_bytes=4096)
    before = open_handles()
    for number in range(2000):
        name = f"voice-{number}"
        store.add(voice(name))
        assert witness.get(name) is not None
        assert store.get(name) is not None
        assert store.delete(name)
        assert witness.get(name) is None
    assert os.listdir(folder) == []
    assert store.cached_bytes == 0
    assert witness.cached_bytes <= 4096
    # What was opened, not how many are open: what an earlier test left open may be closed meanwhile.
    assert open_handles() - before == set()


def test_the_number_of_voices_is_bounded(folder: Path) -> None:
    store = VoiceStore(folder, max_voices=2)
    store.add(voice("a"))
    store.add(voice("b"))
    with pytest.raises(StoreFull, match="2 voices are stored"):
        store.add(voice("c"))
    store.delete("a")
    store.add(voice("c"))
    assert store.names() == ["b", "c"]


class Block:
    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


def test_the_cache_forgets_what_was_not_used_for_longest() -> None:
    cache: ByteLimitedCache[str, Block] = ByteLimitedCache(100)
    blocks = {name: Block(40) for name in "abc"}
    cache.put("a", blocks["a"])
    cache.put("b", blocks["b"])
    assert cache.get("a") is blocks["a"]
    cache.put("c", blocks["c"])
    assert cache.get("b") is None
    assert (len(cache), cache.nbytes) == (2, 80)
    cache.put("a", Block(10))
    assert cache.nbytes == 50
    cache.put("huge", Block(101))
    assert (len(cache), cache.nbytes) == (0, 0)
    cache.forget("never there")


# ---- bad names, texts and files

BAD_NAMES = ["", " ", "..", ".", "../anna", "a/b", "a\\b", "/etc/passwd", ".hidden", "-rf", "_x", "a b", "a.b", "a+b"]
BAD_NAMES += ["a(2)", "a\0b", "a\n", "Anna", "é", "\uff41", "a" * 65, "anna.safetensors", "~", "a%2fb", "con:"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_no_such_name(store: VoiceStore, folder: Path, name: str) -> None:
    outside = folder.parent / "anna.safetensors"
    outside.write_bytes(serialize_voice(voice()))
    with pytest.raises(Rejected) as refusal:
        store.add(voice(name))
    assert refusal.value.param == "name"
    if name != "Anna":  # which asks for anna
        assert store.get(name) is None
        assert not store.delete(name)
    assert os.listdir(folder) == []
    assert outside.exists()


@pytest.mark.parametrize(
    ("param", "unfit"),
    [
        ("consent", voice(consent="")),
        ("consent", voice(consent=" \n")),
        ("consent", voice(consent="x" * (MAX_TEXT_CHARS + 1))),
        ("ref_text", replace(voice(), reference=VoiceReference(EMBEDDING, CODES, "x" * (MAX_TEXT_CHARS + 1)))),
    ],
)
def test_no_such_text(store: VoiceStore, folder: Path, param: str, unfit: StoredVoice) -> None:
    with pytest.raises(Rejected) as refusal:
        store.add(unfit)
    assert refusal.value.param == param
    assert os.listdir(folder) == []


def without_format(path: Path) -> None:
    save_file({"embedding": EMBEDDING}, path)


def rewritten(change: Callable[[dict[str, Any], dict[str, str]], object]) -> Callable[[Path], None]:
    """Spoils a voice file by a change of its tensors and metadata."""

    def spoil(path: Path) -> None:
        tensors: dict[str, Any] = dict(load_file(path))
        with safe_open(path, "np") as file:
            metadata = dict(file.metadata())
        change(tensors, metadata)
        save_file(tensors, path, metadata)

    return spoil


def instead(make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Spoils a voice file by something else in its place."""

    def spoil(path: Path) -> None:
        path.unlink()
        make(path)

    return spoil


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        where = os.getcwd()
        os.chdir(path.parent)  # the path of a socket is short
        listener.bind(path.name)
        os.chdir(where)


def a_loop_of_links(path: Path) -> None:
    path.symlink_to(path.name)


def a_link_to_a_fifo(path: Path) -> None:
    os.mkfifo(path.with_suffix(".fifo"))
    path.symlink_to("bad.fifo")


def a_hole_of_10_gb(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10**10)


def header_of(length: int) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(length.to_bytes(8, "little") + path.read_bytes()[8:])


def odd_dtype(path: Path) -> None:
    """A type that numpy does not have."""
    path.write_bytes(path.read_bytes().replace(b'"F32"', b'"BF16"').replace(b'"shape":[64]', b'"shape":[128]'))


BREAK: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:50]),
    "cut in its data": lambda path: path.write_bytes(path.read_bytes()[:-10]),
    "noise": lambda path: path.write_bytes(b"\xff" * 500),
    "nested": lambda path: path.write_bytes((10**5).to_bytes(8, "little") + b"[" * 10**5),
    "a header of 2^60 bytes": header_of(2**60),
    "a header of 2^64 bytes": header_of(2**64 - 1),
    "too large": lambda path: path.write_bytes(path.read_bytes() + bytes(MAX_FILE_BYTES)),
    "a hole": a_hole_of_10_gb,
    "without a format": without_format,
    "two axes": rewritten(lambda tensors, _: tensors.update(embedding=EMBEDDING[None])),
    "bfloat16": odd_dtype,
    "float64": rewritten(lambda tensors, _: tensors.update(embedding=EMBEDDING.astype(np.float64))),
    "codes of floats": rewritten(lambda tensors, _: tensors.update(codes=CODES.astype(np.float32))),
    "no embedding": rewritten(lambda tensors, _: tensors.pop("embedding")),
    "not finite": rewritten(lambda tensors, _: tensors.update(embedding=EMBEDDING * np.nan)),
    "one more tensor": rewritten(lambda tensors, _: tensors.update(more=EMBEDDING)),
    "no consent": rewritten(lambda _, metadata: metadata.pop("consent")),
    "a long text": rewritten(lambda _, metadata: metadata.update(ref_text="x" * (MAX_TEXT_CHARS + 1))),
    "no number of seconds": rewritten(lambda _, metadata: metadata.update(created_at_s="9" * 5000)),
    "a folder": instead(Path.mkdir),
    "a FIFO": instead(os.mkfifo),
    "a socket": instead(a_socket),
    "a loop of links": instead(a_loop_of_links),
    "a link to a device": instead(lambda path: path.symlink_to("/dev/zero")),
    "a link to a FIFO": instead(a_link_to_a_fifo),
}


@pytest.mark.parametrize("spoil", BREAK.values(), ids=BREAK)
def test_a_broken_file_is_told_once_and_harms_no_other_voice(
    store: VoiceStore, folder: Path, spoil: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    store.add(voice("good"))
    store.add(voice("bad"))
    spoil(folder / "bad.safetensors")
    with pytest.raises(Rejected, match="the stored voice 'bad' cannot be read"):
        store.get("bad")
    before = open_handles()
    for _ in range(3):
        assert [found.name for found in store.all()] == ["good"]
    assert open_handles() - before == set()
    assert caplog.text.count("'bad' cannot be read: ") == 1
    with pytest.raises(Rejected, match="there is a voice 'bad' already"):
        store.add(voice("bad"))
    if (folder / "bad.safetensors").is_dir():
        with pytest.raises(StoreFailed, match="cannot be deleted: Is a directory"):
            store.delete("bad")
        (folder / "bad.safetensors").rmdir()
    else:
        assert store.delete("bad")
    store.add(voice("bad"))
    assert [found.name for found in store.all()] == ["bad", "good"]


def test_what_is_no_file_is_no_name(store: VoiceStore, folder: Path) -> None:
    store.add(voice("good"))
    os.mkfifo(folder / "fifo.safetensors")
    (folder / "folder.safetensors").mkdir()
    (folder / "loop.safetensors").symlink_to("loop.safetensors")
    (folder / "dangling.safetensors").symlink_to("nowhere")
    assert store.names() == ["good"]
    assert store.get("dangling") is None
    assert store.delete("dangling"), "the name is free again"


def test_a_link_to_a_voice_elsewhere_is_a_voice(store: VoiceStore, folder: Path) -> None:
    elsewhere = folder.parent / "elsewhere"
    elsewhere.write_bytes(serialize_voice(voice("linked")))
    (folder / "linked.safetensors").symlink_to(elsewhere)
    assert_same(store.get("linked"), voice("linked"))
    assert store.delete("linked")
    assert elsewhere.exists()


def test_odd_names_are_passed_over(store: VoiceStore, folder: Path) -> None:
    store.add(voice("good"))
    for name in (b"a\n.safetensors", b"\xff\xfe.safetensors", b"\x1b[31m.safetensors", b".safetensors"):
        with open(os.path.join(os.fsencode(folder), name), "wb") as file:
            file.write(serialize_voice(voice("good")))
    assert store.names() == ["good"]
    assert len(store.all()) == 1


def test_odd_partial_files_keep_nobody_from_storing(store: VoiceStore, folder: Path) -> None:
    (folder / ".folder.partial").mkdir()
    (folder / ".loop.partial").symlink_to(".loop.partial")
    for name in (".folder.partial", ".loop.partial"):
        os.utime(folder / name, (0, 0), follow_symlinks=False)
    store.add(voice())
    assert store.names() == ["anna"]


# ---- a disk that does not serve


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, number: int, *functions: str) -> Iterator[None]:
    """Functions of `os` that fail with an error's number."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        for function in functions:
            patch.setattr(os, function, fail)
        yield


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_folder_that_cannot_be_written_to_says_so(
    store: VoiceStore, folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store.add(voice("old"))
    with failing(monkeypatch, number, "link", "unlink"):
        with pytest.raises(StoreFailed, match=f"the voice cannot be stored: {os.strerror(number)}"):
            store.add(voice("new"))
        with pytest.raises(StoreFailed, match=f"the voice cannot be deleted: {os.strerror(number)}"):
            store.delete("old")
        assert not store.delete("new")
        assert_same(store.get("old"), voice("old"))
    assert store.names() == ["old"]


def test_a_full_disk_leaves_nothing(store: VoiceStore, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with failing(monkeypatch, errno.ENOSPC, "fsync"), pytest.raises(StoreFailed, match="No space left"):
        store.add(voice())
    assert os.listdir(folder) == []


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_too_many_open_files_is_no_fault_of_a_voice(
    store: VoiceStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store.add(voice())
    ways: list[Callable[[], object]] = [store.names, store.all, lambda: store.add(voice("new"))]
    with failing(monkeypatch, number, "scandir"):
        for way in ways:
            with pytest.raises(NotServing, match="too many files are open"):
                way()
    with failing(monkeypatch, number, "open"):
        for way in (store.all, lambda: store.get("anna")):
            with pytest.raises(NotServing, match="too many files are open"):
                way()
    assert_same(store.get("anna"), voice())


def test_a_folder_that_is_gone_says_so(store: VoiceStore, folder: Path) -> None:
    folder.rmdir()
    for way in (store.names, store.all):
        with pytest.raises(StoreFailed, match="the folder of stored voices cannot be read: No such file"):
            way()
    assert store.get("anna") is None


def test_files_of_others_are_no_voices(store: VoiceStore, folder: Path) -> None:
    for name in ("README.md", "UPPER.safetensors", ".x.safetensors"):
        (folder / name).write_bytes(b"")
    assert store.names() == []
