"""The memory that loading takes: a model is packed from its file, and is never held in float32."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from vivavoce_bench.cards.layout import codec_config
from vivavoce_bench.cards.random_checkpoint import released_config, write_random_checkpoint
from vivavoce_bench.cards.tensor_sizes import model_sizes

from tests.support.cpu_runners import skip_without_kernels

LAYERS = 5
LOAD = """
import json, sys
from pathlib import Path
from vivavoce_engine.checkpoint.files import read_checkpoint
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.cpu.native_runner import NativeRunner

def kilobytes(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))

before = kilobytes("VmRSS:")
config = EngineConfig(device="cpu", dtype=sys.argv[2], max_streams=1)
runner = NativeRunner("x", read_checkpoint(Path(sys.argv[1])), config)
print(json.dumps({"loaded": kilobytes("VmRSS:") - before, "most": kilobytes("VmHWM:") - before}))
"""


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A checkpoint with a few layers of the released width, and the number of its weights."""
    skip_without_kernels()
    if sys.platform != "linux":
        pytest.skip("reads Linux's files")
    config = released_config("0.6b")
    talker = config["talker_config"]
    talker |= {"num_hidden_layers": LAYERS, "text_vocab_size": 1000}
    talker["code_predictor_config"] |= {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
    folder: Path = tmp_path_factory.mktemp("wide")
    write_random_checkpoint(folder, config, codec_config("tiny"), torch.device("cpu"))
    return folder, sum(torch.Size(size).numel() for size in model_sizes(config).values())


@pytest.mark.long
@pytest.mark.parametrize(("dtype", "loaded_bytes"), [("int8", 1.7), ("bfloat16", 2.2)])
def test_loading_takes_little_more_than_the_packed_model(
    wide: tuple[Path, int], dtype: str, loaded_bytes: float
) -> None:
    """Embeddings are bfloat16 in both. Packed pairs of matrices wait as the bfloat16 of the file, and nothing twice."""
    folder, weights = wide
    done = subprocess.run([sys.executable, "-c", LOAD, folder, dtype], capture_output=True, text=True, check=True)
    took = json.loads(done.stdout.splitlines()[-1])
    assert took["loaded"] * 1024 < loaded_bytes * weights + 100e6
    assert took["most"] * 1024 < (loaded_bytes + 1.2) * weights + 100e6
