"""podman with a storage of its own, which is deleted at the end.

Images are built without a daemon and without namespaces (chroot), and run by runc: crun 1.8 of Debian 12 starts nothing
where both versions of cgroups are mounted. Containers share the network of the machine, which needs no bridge.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.programs import path_of

ROOT = Path(__file__).parents[2]
STORAGE = """[storage]
driver = "overlay"
graphroot = "{folder}/images"
runroot = "{folder}/run"
"""
# The limits are low, since a process without CAP_SYS_RESOURCE cannot raise its own.
CONTAINERS = """[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
netns = "host"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
static_dir = "{folder}/static"
tmp_dir = "{folder}/state"
volume_path = "{folder}/volumes"
"""


@dataclass(frozen=True)
class Podman:
    """Runs podman over a storage in `folder`."""

    folder: Path

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs `podman ARGUMENTS`. Raises AssertionError with what it printed if it fails and `check` is true."""
        done = subprocess.run(
            [path_of("podman"), *arguments], env=self._environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0 or not check, f"{arguments[:2]}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done

    def build(self, target: str, *options: str) -> str:
        """Builds a target of the Dockerfile in Docker's format, the only one that has HEALTHCHECK. Returns its tag."""
        tag = f"localhost/vivavoce-test:{target}"
        how = ("--isolation", "chroot", "--format", "docker", "--layers=false")  # an image for each line takes minutes
        self.run("build", *how, "--target", target, "--tag", tag, *options, str(ROOT))
        return tag

    def image(self, tag: str) -> dict[str, Any]:
        """Returns the answer of `podman image inspect` for an image."""
        (found,) = json.loads(self.run("image", "inspect", tag).stdout)
        return dict(found)

    @contextmanager
    def files(self, tag: str) -> Iterator[Path]:
        """Yields the root folder of an image's files."""
        folder = Path(self.run("image", "mount", tag).stdout.strip())
        try:
            yield folder
        finally:
            self.run("image", "unmount", tag)

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "TMPDIR": str(self.folder / "tmp"),  # also of the build's caches
        }


@contextmanager
def temporary_podman() -> Iterator[Podman]:
    """Yields podman with an empty storage in /var/tmp. Deletes its containers, images and volumes at the end."""
    folder = Path(tempfile.mkdtemp(prefix="vivavoce-image-", dir="/var/tmp"))
    (folder / "tmp").mkdir()
    (folder / "storage.conf").write_text(STORAGE.format(folder=folder))
    (folder / "containers.conf").write_text(CONTAINERS.format(folder=folder))
    podman = Podman(folder)
    try:
        yield podman
    finally:
        podman.run("rm", "--all", "--force", "--time", "0", "--volumes", check=False)
        podman.run("image", "unmount", "--all", "--force", check=False)
        shutil.rmtree(folder)


@dataclass(frozen=True)
class Container:
    """A container that was started in the background."""

    podman: Podman
    name: str

    def execute(self, *command: str, user: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        options = ["--user", user] if user else []
        return self.podman.run("exec", *options, self.name, *command, check=check)

    def processes(self) -> list[int]:
        """Numbers of its processes, as the machine counts them; first the one that was started."""
        lines = self.podman.run("top", self.name, "hpid").stdout.split()[1:]
        return [int(line) for line in lines]

    def is_running(self) -> bool:
        return self.podman.run("inspect", self.name, "--format", "{{.State.Running}}").stdout.strip() == "true"

    def send(self, signal_name: str) -> None:
        self.podman.run("kill", "--signal", signal_name, self.name)

    def wait(self) -> int:
        """Waits for its end. Returns its exit status."""
        return int(self.podman.run("wait", self.name).stdout)

    def log(self) -> str:
        done = self.podman.run("logs", self.name)
        return done.stdout + done.stderr
