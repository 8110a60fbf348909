"""Alignments of checkpoints whose folders cannot be written, in this user's cache folder."""

import json
import logging
import os
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import NamedTemporaryFile

from vivavoce_engine.checkpoint.alignment import Alignment
from vivavoce_engine.checkpoint.files import Checkpoint
from vivavoce_engine.checkpoint.identity import Versions, digest_of_folder, versions_of
from vivavoce_engine.checkpoint.json_file import Json
from vivavoce_engine.errors import CheckpointError

log = logging.getLogger(__name__)


def with_alignment(checkpoint: Checkpoint, setting: Alignment | None) -> Checkpoint:
    """The checkpoint with the alignment that counts: that of the settings, else of its files, else of the cache.

    A chat model tells no words' times, so it has none.

    Raises:
        CheckpointError: the talker has no such head.
    """
    if checkpoint.chat is not None:
        return checkpoint
    alignment = setting or checkpoint.alignment or read_cached_alignment(checkpoint.path)
    size = checkpoint.talker.transformer
    error = alignment and alignment.error(size.num_hidden_layers, size.num_attention_heads)
    if error:
        raise CheckpointError(f"{checkpoint.path}: alignment_heads: {error}")
    return replace(checkpoint, alignment=alignment)


def alignment_folder() -> Path:
    """The folder of the cached alignments: vivavoce/alignments in $XDG_CACHE_HOME, which is ~/.cache by default."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vivavoce" / "alignments"


def write_cached_alignment(path: Path, alignment: Alignment) -> Path:
    """Keeps an alignment for the checkpoint in the folder `path`, whose files it reads whole. Returns the file.

    Raises:
        OSError: the cache cannot be written.
    """
    folder = alignment_folder()
    folder.mkdir(parents=True, exist_ok=True)
    content = {**asdict(alignment), "files": versions_of(path)}
    target = folder / f"{digest_of_folder(path)}.json"
    with NamedTemporaryFile("w", dir=folder, prefix=".", suffix=".tmp", delete=False, encoding="utf-8") as file:
        json.dump(content, file)
    Path(file.name).replace(target)
    return target


def read_cached_alignment(path: Path) -> Alignment | None:
    """The alignment that is kept for the checkpoint in the folder `path`, None if there is none.

    Its files are read whole only if they have the sizes of those that an alignment is kept for, at other times.
    """
    try:
        files, versions = sorted(alignment_folder().glob("*.json")), versions_of(path)
    except OSError as error:
        log.warning("the cached alignments cannot be read: %s", error)
        return None
    digest = ""
    for file in files:
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            kept, alignment = _versions(content), _alignment(content)
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.warning("%s is no cached alignment: %s", file, error)
            continue
        if kept == versions:
            return alignment
        if _sizes(kept) == _sizes(versions):
            digest = digest or digest_of_folder(path)
            if file.stem == digest:
                return alignment
    return None


def _versions(content: Json) -> Versions:
    return tuple((str(name), int(inode), int(time), int(size)) for name, inode, time, size in content["files"])


def _alignment(content: Json) -> Alignment:
    return Alignment(int(content["layer"]), int(content["head"]), float(content["offset_ms"]))


def _sizes(versions: Versions) -> list[tuple[str, int]]:
    return [(name, size) for name, _, _, size in versions]
