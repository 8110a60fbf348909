"""The folder of cached phrases: bounded, shared by processes, whole files or none, and damage that costs an entry."""

import errno
import fcntl
import hashlib
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from vivavoce_engine import AudioChunk, Finished, WordTime
from vivavoce_server.phrases import folder as folder_module
from vivavoce_server.phrases.entry import Damaged, EntryWriter, read_records
from vivavoce_server.phrases.folder import FOLDER, LOCK, NoRoom, PhraseFolder

MIB = 2**20


def key_of(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


def content_of(key: bytes, samples: int = 100) -> bytes:
    """The file of an utterance of one frame with this many samples."""
    writer = EntryWriter(key)
    writer.add(AudioChunk(np.arange(samples, dtype=np.float32), np.zeros((1, 1), np.int16)))
    writer.end_utterance(Finished(3, 1, "stop"))
    return writer.take(last=True)


def store(phrases: PhraseFolder, number: int, samples: int = 100) -> None:
    phrases.begin(key_of(number)).write(content_of(key_of(number), samples), last=True)


def is_kept(phrases: PhraseFolder, number: int) -> bool:
    file = phrases.open(key_of(number))
    if file is not None:
        file.close()
    return file is not None


def opened(parent: Path, max_bytes: int = MIB, on_evicted: Callable[[], object] = lambda: None) -> PhraseFolder:
    return PhraseFolder(parent, max_bytes, on_evicted)


def sizes(parent: Path) -> int:
    return sum(path.stat().st_size for path in (parent / FOLDER).iterdir() if path.name != LOCK)


def path_of(parent: Path, number: int) -> Path:
    return parent / FOLDER / f"{key_of(number).hex()}.phrase"


def test_an_entry_is_read_as_it_was_written(tmp_path: Path) -> None:
    phrases = opened(tmp_path, 4 * MIB)
    key = key_of(1)
    writer, entry = EntryWriter(key), phrases.begin(key)
    pieces = [np.array([0.1, -1e-40, np.float32(1) / 3], np.float32), np.linspace(-1, 1, 100_000, dtype=np.float32)]
    words = (WordTime(0, 5, 0.1, 1 / 3), WordTime(6, 9, None, None))
    for piece in pieces:
        writer.add(AudioChunk(piece, np.zeros((2, 16), np.int16), words if piece is pieces[1] else ()))
        entry.write(writer.take())
    writer.end_utterance(Finished(7, 4, "stop", queue_wait_s=2.0))
    writer.add(AudioChunk(pieces[0], np.zeros((1, 16), np.int16)))
    writer.end_utterance(Finished(8, 1, "stop"))
    assert phrases.open(key) is None
    entry.write(writer.take(last=True), last=True)
    file = phrases.open(key)
    assert file is not None
    with file:
        first, second = list(read_records(file))  # a block
        (end,) = list(read_records(file))
        again, last = list(read_records(file))
    assert isinstance(first, AudioChunk)
    assert isinstance(second, AudioChunk)
    assert isinstance(again, AudioChunk)
    assert [piece.pcm.tobytes() for piece in (first, second, again)] == [
        piece.tobytes() for piece in (pieces[0], pieces[1], pieces[0])
    ]
    assert [piece.frames for piece in (first, second, again)] == [2, 2, 1]
    assert [piece.words for piece in (first, second, again)] == [(), words, ()]
    assert (end, last) == (Finished(7, 4, "stop"), Finished(8, 1, "stop"))


def test_long_speech_is_read_in_blocks(tmp_path: Path) -> None:
    phrases = opened(tmp_path, 64 * MIB)
    writer, entry = EntryWriter(key_of(1)), phrases.begin(key_of(1))
    for _ in range(100):
        writer.add(AudioChunk(np.zeros(15_360, np.float32), np.zeros((8, 1), np.int16)))
    writer.end_utterance(Finished(1, 800, "stop"))
    entry.write(writer.take(last=True), last=True)
    file = phrases.open(key_of(1))
    assert file is not None
    with file:
        lengths: list[int] = []
        while not lengths or lengths[-1] == 5:
            lengths.append(len(list(read_records(file))))
    assert lengths == [5] * 20 + [1]


def test_folder_and_files_are_this_users_alone(tmp_path: Path) -> None:
    parent = tmp_path / "new" / "cache"
    before = os.umask(0)
    try:
        store(opened(parent), 1)
    finally:
        os.umask(before)
    assert stat.S_IMODE(parent.stat().st_mode) == 0o700
    assert stat.S_IMODE((parent / FOLDER).stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (parent / FOLDER).iterdir()} == {0o600}


def test_a_folder_that_is_open_to_others_is_not_used(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER).chmod(0o755)
    with pytest.raises(PermissionError, match="chmod 700"):
        opened(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / FOLDER).symlink_to(elsewhere)
    with pytest.raises(NotADirectoryError):
        opened(tmp_path / "linked")


def test_the_least_recently_used_entries_leave(tmp_path: Path) -> None:
    size = len(content_of(key_of(0)))
    left: list[None] = []
    phrases = opened(tmp_path, 16 * size, lambda: left.append(None))
    for number in range(16):
        store(phrases, number)
        os.utime(path_of(tmp_path, number), (1000 + number, 1000 + number))
    assert sizes(tmp_path) == 16 * size
    assert phrases.total_bytes == 16 * size
    assert is_kept(phrases, 0)  # which is a use
    store(phrases, 16)
    kept = [number for number in range(17) if path_of(tmp_path, number).exists()]
    assert kept == [0, *range(3, 17)]
    assert len(left) == 2
    assert phrases.total_bytes == sizes(tmp_path) == 15 * size


def test_uses_and_bounds_outlive_the_process(tmp_path: Path) -> None:
    size = len(content_of(key_of(0)))
    phrases = opened(tmp_path, 16 * size)
    for number in range(16):
        store(phrases, number)
        os.utime(path_of(tmp_path, number), (1000 + number, 1000 + number))
    assert is_kept(phrases, 3)
    smaller = opened(tmp_path, 8 * size)
    assert sizes(tmp_path) <= 8 * size
    assert is_kept(smaller, 3)
    assert is_kept(smaller, 15)
    assert not is_kept(smaller, 4)


def test_the_folder_never_exceeds_its_size(tmp_path: Path) -> None:
    """Entries of many sizes, written in pieces by four threads, of which some are given up."""
    limit = 200_000
    folders = [opened(tmp_path, limit) for _ in range(2)]
    sums: list[int] = []

    def work(worker: int) -> None:
        random = np.random.default_rng(worker)
        phrases = folders[worker % 2]
        for round_number in range(25):
            number = int(random.integers(40))
            content = content_of(key_of(number), samples=int(random.integers(1, 12_000)))
            entry = phrases.begin(key_of(number))
            half = len(content) // 2
            with suppress(NoRoom):
                entry.write(content[:half])
                if round_number % 5:
                    entry.write(content[half:], last=True)
            with phrases._locked():  # nobody renames a file meanwhile, so that each counts once
                sums.append(phrases._count())
            entry.abandon()

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert limit / 2 < max(sums) <= limit
    assert not list((tmp_path / FOLDER).glob("*.partial"))
    assert int((tmp_path / FOLDER / LOCK).read_text()) == sizes(tmp_path)


def test_an_entry_that_is_too_large_is_not_kept_and_leaves_no_trace(tmp_path: Path) -> None:
    phrases = opened(tmp_path, 4000)
    entry = phrases.begin(key_of(1))
    entry.write(bytes(900))
    with pytest.raises(NoRoom):
        entry.write(bytes(101))
    entry.abandon()
    entry.abandon()
    assert sizes(tmp_path) == 0
    assert phrases.total_bytes == 0


def test_unfinished_entries_take_room_and_are_never_read(tmp_path: Path) -> None:
    phrases = opened(tmp_path, 4000)
    entries = [phrases.begin(key_of(number)) for number in range(5)]
    for entry in entries[:4]:
        entry.write(bytes(1000))
    with pytest.raises(NoRoom):
        entries[4].write(bytes(1))
    assert phrases.open(key_of(0)) is None
    for entry in entries:
        entry.abandon()
    entries[4].write(bytes(1), last=True)  # abandoned: nothing is written
    assert sizes(tmp_path) == 0


def test_a_file_of_a_process_that_died_is_deleted_once_it_is_old(tmp_path: Path) -> None:
    phrases = opened(tmp_path)
    for name in ("old", "young"):
        (tmp_path / FOLDER / f"{name}.partial").write_bytes(bytes(10))
    os.utime(tmp_path / FOLDER / "old.partial", (1000, 1000))
    store(phrases, 1)
    phrases = opened(tmp_path)
    assert sorted(path.name for path in (tmp_path / FOLDER).glob("*.partial")) == ["young.partial"]
    assert phrases.total_bytes == sizes(tmp_path)


def test_a_wrong_sum_is_mended(tmp_path: Path) -> None:
    phrases = opened(tmp_path)
    store(phrases, 1)
    for wrong in (b"", b"much", b"9" * 40, b"-5", b"\xff"):
        (tmp_path / FOLDER / LOCK).write_bytes(wrong)
        store(phrases, 2)
        assert is_kept(phrases, 2)
        assert phrases.total_bytes == sizes(tmp_path)


# ---- damage


def damaged(parent: Path, number: int, content: bytes) -> bool:
    """True if the entry of this number is refused, and deleted, after its file has this content."""
    phrases = opened(parent)
    store(phrases, number)
    path_of(parent, number).write_bytes(content)
    try:
        assert not is_kept(phrases, number)
    except Damaged:
        assert not path_of(parent, number).exists()
        assert phrases.total_bytes == sizes(parent)
        return True
    return False


def test_each_changed_or_missing_byte_is_found(tmp_path: Path) -> None:
    sound = content_of(key_of(1), samples=4)
    for place in range(len(sound)):
        changed = bytearray(sound)
        changed[place] ^= 1 << place % 8
        assert damaged(tmp_path, 1, bytes(changed)), place
        assert damaged(tmp_path, 1, sound[:place]), place
    assert damaged(tmp_path, 1, sound + b"\0")
    assert damaged(tmp_path, 1, sound + sound)


@pytest.mark.parametrize("content", [b"", b"RIFF" * 100, bytes(5000), content_of(key_of(2))])
def test_a_foreign_file_under_an_entrys_name_is_found(tmp_path: Path, content: bytes) -> None:
    """The last one is a sound entry of another key."""
    assert damaged(tmp_path, 1, content)


def test_what_is_no_file_is_found_and_not_waited_for(tmp_path: Path) -> None:
    phrases = opened(tmp_path)
    path = path_of(tmp_path, 1)
    sound = tmp_path / "sound"
    sound.write_bytes(content_of(key_of(1)))
    for make in (
        partial(os.mkfifo, path),
        path.mkdir,
        partial(path.symlink_to, sound),
        partial(path.symlink_to, "/dev/zero"),
        partial(path.symlink_to, path),
    ):
        make()
        with pytest.raises(Damaged):
            phrases.open(key_of(1))
        assert not os.path.lexists(path)
    store(phrases, 1)
    assert is_kept(phrases, 1)
    assert sound.exists()


def test_a_huge_foreign_file_is_not_read(tmp_path: Path) -> None:
    phrases = opened(tmp_path)
    with path_of(tmp_path, 1).open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(Damaged):
        phrases.open(key_of(1))
    assert not path_of(tmp_path, 1).exists()


def test_a_file_that_is_cut_after_it_was_checked_ends_as_an_error(tmp_path: Path) -> None:
    phrases = opened(tmp_path)
    store(phrases, 1, samples=50_000)
    file = phrases.open(key_of(1))
    assert file is not None
    os.truncate(path_of(tmp_path, 1), 100_000)
    with file, pytest.raises(Damaged):
        list(read_records(file))


# ---- disks that do not serve


def test_a_full_disk_fails_the_write_and_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    phrases = opened(tmp_path)
    entry = phrases.begin(key_of(1))
    content = content_of(key_of(1))
    entry.write(content[:10])

    def full(file: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            entry.write(content[10:], last=True)
        entry.abandon()
    assert sizes(tmp_path) == 0
    assert phrases.open(key_of(1)) is None
    store(phrases, 1)
    assert phrases.total_bytes == sizes(tmp_path)


def test_a_write_in_pieces_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    phrases = opened(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda file, data: write(file, data[:7]))
        store(phrases, 1)
    assert is_kept(phrases, 1)


def test_a_lock_that_another_process_holds_is_not_waited_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phrases = opened(tmp_path)
    store(phrases, 1)
    monkeypatch.setattr(folder_module, "LOCK_WAIT_S", 0.0)
    with (tmp_path / FOLDER / LOCK).open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError):
            store(phrases, 2)
        assert is_kept(phrases, 1)
    store(phrases, 2)
    assert is_kept(phrases, 2)


# ---- several processes

WRITER = """
import sys
from pathlib import Path
from tests.server.test_phrase_folder import is_kept, key_of, opened, store
phrases = opened(Path(sys.argv[1]), int(sys.argv[2]))
for number in range(60):
    store(phrases, number % 20)
    is_kept(phrases, (number * 7) % 20)
print(int(is_kept(phrases, 19)))
"""


def test_processes_share_a_folder(tmp_path: Path) -> None:
    """Two write the same entries at once, in a folder that has no room for all of them. Damage would end a process."""
    limit = 12 * len(content_of(key_of(0)))
    command = [sys.executable, "-c", WRITER, str(tmp_path), str(limit)]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2], text=True) for _ in range(2)
    ]
    for process in processes:
        told, _ = process.communicate()
        assert process.returncode == 0
        assert told == "1\n"
    assert sizes(tmp_path) <= limit
    assert int((tmp_path / FOLDER / LOCK).read_text()) == sizes(tmp_path)
    phrases = opened(tmp_path, limit)
    kept = [number for number in range(20) if path_of(tmp_path, number).exists()]
    assert len(kept) >= 10
    assert all(is_kept(phrases, number) for number in kept)
