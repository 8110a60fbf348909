"""Set-up of PyTorch's GPU memory in the engine's process."""

import subprocess
import sys
from pathlib import Path

import pytest
from vivavoce_engine.runtime import use_expandable_segments

SEGMENTS = "expandable_segments:True"
NO_KERNEL = Path("/there/is/no/such/file")
OWN = "max_split_size_mb:64"


@pytest.mark.parametrize(
    ("set_by_user", "setting"),
    [({}, SEGMENTS), ({"PYTORCH_ALLOC_CONF": OWN}, OWN), ({"PYTORCH_CUDA_ALLOC_CONF": OWN}, None)],
)
def test_what_the_user_has_set_stays(
    set_by_user: dict[str, str], setting: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = dict(set_by_user)
    monkeypatch.setattr("vivavoce_engine.runtime.os.environ", environment)
    use_expandable_segments(NO_KERNEL)
    assert environment.get("PYTORCH_ALLOC_CONF") == setting


@pytest.mark.parametrize(
    ("release", "setting"),
    [
        ("6.6.87.2-microsoft-standard-WSL2\n", None),
        ("4.4.0-19041-Microsoft\n", None),
        ("6.8.0-52-generic\n", SEGMENTS),
    ],
)
def test_a_kernel_of_windows_is_left_as_it_is(
    release: str, setting: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment: dict[str, str] = {}
    monkeypatch.setattr("vivavoce_engine.runtime.os.environ", environment)
    kernel = tmp_path / "osrelease"
    kernel.write_text(release)
    use_expandable_segments(kernel)
    assert environment.get("PYTORCH_ALLOC_CONF") == setting


def test_the_worker_is_there_before_torch() -> None:
    """Which reads the setting when it is imported."""
    told = "import sys, vivavoce_engine.process.worker; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
