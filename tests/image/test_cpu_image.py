"""The CPU's image: what is in it, and a server of it that runs as the image's user and may write into volumes alone."""

import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest
from vivavoce_engine.cpu.build import this_platform

from tests.image.podman import Container, Podman
from tests.support.dockerfile import of_stage
from tests.support.fleet import free_port
from tests.support.listening import LONG, SHORT, SPEECH, listen, listeners
from tests.support.programs import needs
from tests.support.speaking import assert_same_samples
from tests.support.waiting import wait_until
from tests.test_first_speech import TEXT, assert_audible, samples_of

ADDED_LIMIT_BYTES = 1_290_000_000
"""Most bytes that the image may add to its base."""
COMPILERS = {"as", "c++", "c++filt", "cc", "clang", "cpp", "g++", "gcc", "ld", "make", "nvcc", "rustc"}
GPU_PACKAGES = ("triton", "nvidia", "cuda")
START_S = 120.0
VOLUMES = ("voices", "models", "cache")
LOCKED = ("--read-only", "--read-only-tmpfs=false", "--tmpfs", "/tmp", "--cap-drop", "all")  # noqa: S108 (a mount)
VOICE = {"name": "ada", "consent": "I agree.", "voice": "heart+bella"}

pytestmark = needs("podman", "runc", "debootstrap")


@contextmanager
def started(podman: Podman, image: str, volumes: str, *options: str) -> Iterator[tuple[Container, str]]:
    """Yields a ready server in a container, and its URL. `volumes` tells its volumes from those of other tests."""
    port = free_port()
    mounts = [word for name in VOLUMES for word in ("--volume", f"{volumes}-{name}:/{name}")]
    # Without systemd nothing would run the health check every 10 s; the test runs it.
    background = ("--detach", "--health-interval", "disable", "--security-opt", "no-new-privileges")
    settings = ("--env", f"VIVAVOCE_PORT={port}", "--env", "TRITON_CACHE_DIR=/cache/triton")
    done = podman.run("run", *background, *LOCKED, *mounts, *settings, *options, image)
    container = Container(podman, done.stdout.strip())
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: is_ready(url) or not container.is_running(), START_S, pause_s=0.5)
        assert container.is_running(), container.log()
        yield container, url
    finally:
        podman.run("rm", "--force", "--time", "0", container.name)


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready").status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def server(podman: Podman, cpu_image: str) -> Iterator[tuple[Container, str]]:
    with started(podman, cpu_image, "shared") as running:
        yield running


@pytest.fixture(scope="module")
def files(podman: Podman, cpu_image: str) -> Iterator[Path]:
    with podman.files(cpu_image) as folder:
        yield folder


def levels_of_this_platform() -> set[str]:
    platform = this_platform()
    assert platform is not None
    return {level.name for level in platform.levels}


def privileged(folder: Path) -> set[str]:
    """Paths of files that run as their owner or group."""
    modes = ((path, path.lstat().st_mode) for path in folder.rglob("*"))
    return {str(path.relative_to(folder)) for path, mode in modes if stat.S_ISREG(mode) and mode & 0o6000}


def test_its_configuration_is_the_dockerfiles(podman: Podman, cpu_image: str) -> None:
    found = podman.image(cpu_image)
    config = found["Config"]
    assert (config["Entrypoint"], config["Cmd"]) == (["vivavoce"], ["serve"])
    assert config["User"] == of_stage("cpu", "USER")[0]
    assert set(config["Volumes"]) == {f"/{name}" for name in VOLUMES}
    assert set(config["ExposedPorts"]) == {"8000/tcp"}
    assert config["Labels"]["org.opencontainers.image.title"] == "Vivavoce"
    assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert found["Healthcheck"]["Test"][:2] == ["CMD", "python"]


def test_it_is_small(podman: Podman, base: str, cpu_image: str) -> None:
    total_bytes, base_bytes = (podman.image(tag)["Size"] for tag in (cpu_image, base))
    print(f"\nthe CPU's image has {total_bytes / 1e9:.2f} GB, of which {base_bytes / 1e9:.2f} GB are its base")
    assert total_bytes - base_bytes < ADDED_LIMIT_BYTES


def test_it_holds_what_runs_and_nothing_that_built_it(podman: Podman, base: str, files: Path) -> None:
    programs = {path.name for pattern in ("usr/*bin/*", "usr/local/*bin/*") for path in files.glob(pattern)}
    assert "python3" in programs
    assert programs & COMPILERS == set()
    packages = {path.name for path in files.glob("opt/vivavoce/lib/python3.*/site-packages/*")}
    assert [name for name in packages if re.match(r"torch-.*\+cpu\.dist-info", name)]
    assert [name for name in packages if name.startswith(GPU_PACKAGES)] == []
    assert "pip" not in packages
    libraries = files.glob("opt/vivavoce/lib/python3.*/site-packages/vivavoce_engine/cpu/native/lib*")
    assert {path.name.partition(".")[0] for path in libraries} == {
        f"libvivavoce-{level}" for level in levels_of_this_platform()
    }
    assert not (files / "root/.cache").exists()
    assert not (files / "src").exists()
    with podman.files(base) as plain:
        assert privileged(files) == privileged(plain)


def test_its_user_owns_nothing_but_the_volumes_and_a_home(files: Path) -> None:
    uid = int(of_stage("cpu", "USER")[0].split(":")[0])
    owned = {path.relative_to(files).parts[:2] for path in files.rglob("*") if path.lstat().st_uid == uid}
    assert owned == {("home", "vivavoce"), *((name,) for name in VOLUMES)}


def test_it_speaks_to_openais_client(server: tuple[Container, str]) -> None:
    with openai.OpenAI(base_url=f"{server[1]}/v1", api_key="none") as client:
        wav = client.audio.speech.create(model="tts-1", voice="alloy", input=TEXT, response_format="wav").content
    assert_audible(samples_of(wav))


def test_its_health_check_asks_the_server(podman: Podman, cpu_image: str, server: tuple[Container, str]) -> None:
    container, url = server
    assert httpx.get(f"{url}/health").status_code == 200
    assert podman.run("healthcheck", "run", container.name, check=False).returncode == 0
    _, program, *arguments = podman.image(cpu_image)["Healthcheck"]["Test"]
    alone = podman.run("run", "--rm", *LOCKED, "--env", f"VIVAVOCE_PORT={free_port()}", "--entrypoint", program,
                       cpu_image, *arguments, check=False)  # fmt: skip
    assert alone.returncode == 1
    assert "Connection refused" in alone.stderr


def test_no_process_is_roots_or_may_become_root(server: tuple[Container, str]) -> None:
    processes = server[0].processes()
    assert len(processes) >= 2, "the server, and the engine"
    for number in processes:
        status = dict(line.split(":\t") for line in Path(f"/proc/{number}/status").read_text().splitlines())
        assert (status["Uid"].split(), status["Gid"].split()) == (["10001"] * 4, ["10001"] * 4)
        assert int(status["CapEff"], 16) == 0
        assert status["NoNewPrivs"].strip() == "1"


def test_the_engine_inherits_where_kernels_are_kept(server: tuple[Container, str]) -> None:
    environments = [Path(f"/proc/{number}/environ").read_bytes().split(b"\0") for number in server[0].processes()]
    assert all(b"TRITON_CACHE_DIR=/cache/triton" in environment for environment in environments)


@pytest.mark.parametrize("user", ["", "0"], ids=["its user", "root"])
def test_the_root_file_system_is_read_only(server: tuple[Container, str], user: str) -> None:
    for folder in ("/", "/etc", "/home/vivavoce", "/opt/vivavoce", "/usr", "/var/lib"):
        written = server[0].execute("touch", f"{folder}/written", user=user, check=False)
        assert "Read-only file system" in written.stderr, folder
    for folder in ("/tmp", "/voices", "/models", "/cache"):  # noqa: S108
        server[0].execute("touch", f"{folder}/written")


def test_another_user_speaks_and_stores_voices(podman: Podman, cpu_image: str) -> None:
    with started(podman, cpu_image, "another", "--user", "12345") as (container, url):
        heard = listen(url, SHORT | {"voice": store_voice(url)})
        assert {Path(f"/proc/{number}").stat().st_uid for number in container.processes()} == {12345}
    assert heard.complete
    assert heard.pcm


def test_it_ends_when_its_speech_has_ended_and_its_voices_outlive_it(podman: Podman, cpu_image: str) -> None:
    with started(podman, cpu_image, "kept") as (container, url):
        # Long enough that it is still being spoken when the signal has arrived.
        body = LONG | {"input": " ".join([str(LONG["input"])] * 8), "voice": store_voice(url)}
        before = listen(url, body)
        with listeners(url, 1, body) as (listener,):
            container.send("TERM")
            wait_until(lambda: httpx.get(f"{url}/ready").status_code == 503)
            assert not listener.done()
            assert httpx.post(url + SPEECH, json=SHORT).status_code == 503
            heard = listener.result()
        assert container.wait() == 0
    assert before.complete
    assert heard.complete
    assert len(heard.pcm) == len(before.pcm)
    with started(podman, cpu_image, "kept") as (_, url):
        assert_same_samples(listen(url, body).samples, before.samples)


def store_voice(url: str) -> str:
    """Stores a voice in /voices. Returns its name."""
    stored = httpx.post(f"{url}/v1/audio/voices", files={name: (None, value) for name, value in VOICE.items()})
    assert stored.status_code == 200, stored.text
    return str(stored.json()["id"])
