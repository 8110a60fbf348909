"""Contents of the folder of a job."""

from pathlib import Path

from vivavoce_client.batch.job import JOB_FILE


def content_of(folder: Path) -> dict[str, bytes]:
    """Name → bytes of each file of a job, but its state."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(JOB_FILE))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
