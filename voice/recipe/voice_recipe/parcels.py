"""Files in pieces of a limited size, for a machine from which only few small files come back.

python -m voice_recipe.parcels FOLDER FILE..             packs files into FOLDER/parcel.00, parcel.01, …
python -m voice_recipe.parcels FOLDER --unpack TARGET    writes them into TARGET again
"""

from __future__ import annotations

import argparse
import io
import tarfile
from pathlib import Path

PIECE_BYTES, MOST_PIECES = 15 * 2**20, 4
"""Four pieces of 15 MiB fit where 8 files of 16 MiB, 64 MiB in all, come back."""


def pack(folder: Path, files: dict[str, Path]) -> list[str]:
    """Pack files under their names, in order, as far as they fit -> names of those that do not. Old pieces go."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("parcel.*"):
        old.unlink()
    room, left_out = PIECE_BYTES * MOST_PIECES - 2 * tarfile.RECORDSIZE, []
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, path in files.items():
            if path.stat().st_size + 2 * tarfile.BLOCKSIZE > room:
                left_out.append(name)
                continue
            tar.add(path, name)
            room -= path.stat().st_size + 2 * tarfile.BLOCKSIZE
    content = buffer.getvalue()
    for number, at in enumerate(range(0, len(content), PIECE_BYTES)):
        (folder / f"parcel.{number:02d}").write_bytes(content[at : at + PIECE_BYTES])
    return left_out


def unpack(folder: Path, target: Path) -> list[str]:
    """Write the packed files into a folder -> their names."""
    content = b"".join(piece.read_bytes() for piece in sorted(folder.glob("parcel.*")))
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        tar.extractall(target, filter="data")
        return tar.getnames()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--unpack", type=Path, metavar="TARGET")
    args = parser.parse_args()
    if args.unpack:
        print("\n".join(unpack(args.folder, args.unpack)))
        return
    left_out = pack(args.folder, {path.name: path for path in args.files})
    if left_out:
        raise SystemExit(f"no room for {', '.join(left_out)}")


if __name__ == "__main__":
    main()
