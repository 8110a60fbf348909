"""Write the golden files: outputs of the reference, qwen-tts 0.1.1, in float32 on the CPU.

    python3.11 -m venv .venv-reference
    .venv-reference/bin/pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
    .venv-reference/bin/pip install transformers==4.57.3 accelerate librosa==0.11.0 soundfile
    .venv-reference/bin/pip install onnxruntime sox einops
    .venv-reference/bin/pip install --no-deps qwen-tts==0.1.1

    .venv-reference/bin/python tests/golden/make_golden.py
    .venv-reference/bin/python tests/golden/make_golden.py --checkpoint FOLDER --out FILE

The first form uses the tiny random checkpoints of tests/support, the second records English prompts on any
CustomVoice folder. README.md beside this file says what is stored.
"""

# ruff: noqa: RUF001 - the texts are meant to hold such characters

import argparse
import hashlib
import importlib.machinery
import importlib.metadata
import json
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import librosa
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file
from transformers import LogitsProcessorList, Qwen2TokenizerFast
from transformers.models.mimi.modeling_mimi import MimiEuclideanCodebook

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[1] / "bench")]

from vivavoce_bench.cards.layout import SHAPES, ShapeName  # noqa: E402

from tests.support.golden import thin  # noqa: E402
from tests.support.reference_audio import REFERENCES, reference_audio  # noqa: E402
from tests.support.tiny_checkpoints import write_checkpoint  # noqa: E402


def stub_torchaudio() -> None:
    """qwen-tts imports torchaudio for its 25 Hz tokenizer only; an empty module is enough here."""
    for name in ("torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi"):
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, loader=None, is_package=True)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


stub_torchaudio()
from qwen_tts import Qwen3TTSModel  # noqa: E402
from qwen_tts.core.models.modeling_qwen3_tts import mel_spectrogram  # noqa: E402

Call = dict[str, Any]
MAX_NEW_TOKENS = 41  # the reference returns one frame less when no end is sampled
SAFE_MARGIN = 1e-4  # a choice closer than this may come out otherwise on another processor
GREEDY = {"do_sample": False, "subtalker_dosample": False, "repetition_penalty": 1.05}  # whatever a checkpoint's own is
MODES = {"full": True, "streaming": False}  # name -> non_streaming_mode
SENTENCE = "Hello, world! The quick brown fox."
LONG = (
    "The quick brown fox jumps over the lazy dog, and then it speaks with a calm and clear voice to everyone "
    "who listens: yes, that's what we've been waiting for; isn't it?"
)
CUSTOM_VOICE: dict[str, Call] = {
    "english": {"text": SENTENCE, "speaker": "Ryan", "language": "English"},
    "auto": {"text": "Bonjour, café naïve! 2024 🎉", "speaker": "serena"},
    "dialect_auto": {"text": "你好，今天天气很好。", "speaker": "Eric", "language": "Auto"},
    "dialect_chinese": {"text": "东京 и Москва: it’s “fine”.", "speaker": "Dylan", "language": "Chinese"},
    "dialect_english": {"text": SENTENCE, "speaker": "Dylan", "language": "English"},
    "instruct": {
        "text": "The lazy dog jumps.",
        "speaker": "Vivian",
        "language": "Chinese",
        "instruct": "calm and clear, 慢一点",
    },
    "one_word": {"text": "Hello", "speaker": "uncle_fu", "language": "Japanese"},
    "long": {"text": LONG, "speaker": "Aiden", "language": "English"},
}
VOICE_DESIGN: dict[str, Call] = {
    "english": {"text": SENTENCE, "instruct": "a calm clear voice", "language": "English"},
    "auto": {
        "text": "¿Qué tal? Привет, 안녕하세요!",
        "instruct": "old friend, whispering",
        "language": "Auto",
    },
    "chinese": {"text": "你好，今天天气很好。", "instruct": "年轻的女声，慢一点", "language": "Chinese"},
    "no_instruct": {"text": SENTENCE, "instruct": "", "language": "German"},
    "one_word": {"text": "Hello", "instruct": "excited", "language": "English"},
    "long": {"text": LONG, "instruct": "warm narrator", "language": "English"},
}
BASE: dict[str, Call] = {  # "reference" is the audio; without ref_text only its x-vector is used
    "x_vector": {"text": SENTENCE, "language": "English", "reference": "short"},
    "x_vector_auto": {"text": "你好 Hello!", "language": "Auto", "reference": "long"},
    "in_context": {"text": SENTENCE, "language": "English", "reference": "short", "ref_text": "The lazy dog"},
    "in_context_long_text": {
        "text": LONG,
        "language": "Auto",
        "reference": "short",
        "ref_text": "慢一点 Hello",
    },
    "in_context_long_audio": {"text": SENTENCE, "language": "French", "reference": "long", "ref_text": LONG},
    "in_context_44k": {
        "text": "Hello",
        "language": "English",
        "reference": "short_44k",
        "ref_text": "it's fine",
    },
}
# Prompts of which more is kept than the codes.
WITH_INPUTS = {"instruct", "x_vector", "in_context", "in_context_long_text"}
WITH_WAVE = {"english", "one_word", "x_vector", "in_context", "in_context_44k", "greeting"}
SHIPPED = {
    "one_word": "Hello.",
    "greeting": "Good morning! How can I help you today?",
    "numbers": "The train leaves at 7:45 from platform 12, doesn't it?",
    "news": "The city council met on Tuesday to talk about the new bridge over the river.",
    "names": "Dr. Smith's café in Zürich sells tea, coffee and fresh bread.",
}
TRICKY_TEXTS = (
    "Hello iPhone McDonald",
    "IT'S it's It'S don't DON'T we'Ll I'm o'clock 's",
    "2024 12.5% ½ Ⅷ １２３ ٣٤",
    "你好，世界！今天天气很好。",
    "こんにちは、カタカナ。安녕하세요 안녕",
    "मानक हिन्दी नमस्ते",
    "السَّلَامُ عَلَيْكُمْ",
    "naïve cafe\u0301 A\u030a \u1112\u1161\u11ab ﬁ Å",
    "👩\u200d👩\u200d👧 🎉🎉 a\u200bb\ufeff",
    "  two  spaces   and trailing  ",
    "\ttab\t\tand\r\nlines\n\n\nend\n",
    "\nleading newline",
    " \n \n x",
    "...!!!???  --- ---\n***",
    "a.b,c;d/e\\f (g)[h]{i} <j> #k @l $m",
    "\u00a0non\u00a0breaking\u3000wide",
    "<|im_end|>special<|im_start|>assistant\n<think> <tts_pad>",
    "<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\ncalm and clear<|im_end|>\n",
    "",
)


class Store:
    """The tensors and facts of one golden file."""

    def __init__(self, **info: Any) -> None:
        packages = ("qwen-tts", "transformers", "torch", "librosa")
        self.tensors: dict[str, NDArray[Any]] = {}
        self.info: dict[str, Any] = {
            "made_with": {name: importlib.metadata.version(name) for name in packages},
            **info,
        }

    def save(self, path: Path) -> None:
        tensors = {name: np.ascontiguousarray(value) for name, value in self.tensors.items()}
        if tensors:
            save_file(tensors, path.with_suffix(".safetensors"))
            path.with_suffix(".safetensors").chmod(0o644)
        text = json.dumps(self.info, indent=1, ensure_ascii=False)
        path.with_suffix(".json").write_text(text + "\n", encoding="utf-8")
        print(path.name, f"{sum(value.nbytes for value in tensors.values()):,} bytes of tensors")


def load(folder: Path) -> Qwen3TTSModel:
    """Load the reference in float32, with the Qwen2 pre-tokenizer."""
    wrapper = Qwen3TTSModel.from_pretrained(str(folder), dtype=torch.float32, device_map="cpu")
    assert wrapper.model.dtype == wrapper.model.speech_tokenizer.model.dtype == torch.float32
    # For a local folder the reference replaces the pre-tokenizer's expression by Mistral's; undo that.
    wrapper.processor.tokenizer = Qwen2TokenizerFast.from_pretrained(str(folder))
    split = json.loads(wrapper.processor.tokenizer.backend_tokenizer.to_str())["pre_tokenizer"]
    assert split["pretokenizers"][0]["pattern"]["Regex"].startswith("(?i:'s|'t|'re|"), split
    return wrapper


def margins(scores: tuple[torch.Tensor, ...]) -> list[float]:
    """How far the best score is above the second best, for each step."""
    best = torch.cat(scores).topk(2).values
    return (best[:, 0] - best[:, 1]).tolist()


def record_generation(wrapper: Qwen3TTSModel, kept: dict[str, Any]) -> None:
    """From now on, keep what goes into and comes out of the reference's generate()."""
    model, talker = wrapper.model, wrapper.model.talker
    generate, talk, predict = model.generate, talker.generate, talker.code_predictor.generate

    def recording_generate(**kwargs: Any) -> Any:
        codes, hidden = generate(**kwargs)
        for name in ("input_ids", "instruct_ids", "ref_ids"):
            ids = (kwargs.get(name) or [None])[0]
            kept[name] = None if ids is None else ids[0].tolist()
        kept["codes"], kept["hidden"] = codes[0], hidden[0]
        return codes, hidden

    def recording_talk(**kwargs: Any) -> Any:
        kept["predictor_margins"] = []
        result = talk(output_scores=True, **kwargs)
        kept["prefill"] = kwargs["inputs_embeds"][0]
        kept["trailing"] = kwargs["trailing_text_hidden"][0]
        kept["sampled"] = result.sequences[0].tolist()
        kept["talker_margins"] = margins(result.scores)
        return result

    def recording_predict(**kwargs: Any) -> Any:
        result = predict(output_scores=True, **kwargs)
        kept["predictor_margins"].append(min(margins(result.scores)))
        return result

    model.generate, talker.generate = recording_generate, recording_talk
    talker.code_predictor.generate = recording_predict


class Session:
    """Runs greedy calls on one checkpoint and stores them."""

    def __init__(self, folder: Path, store: Store, max_new_tokens: int = MAX_NEW_TOKENS) -> None:
        self.wrapper, self.store, self.max_new_tokens = load(folder), store, max_new_tokens
        self.kept: dict[str, Any] = {}
        store.info["calls"] = {}
        record_generation(self.wrapper, self.kept)

    def run(self, name: str, generate: Callable[..., Any], call: Call, extra: dict[str, Any]) -> None:
        """Make the call in both text modes; `extra` are arguments that the JSON file cannot hold."""
        for mode, non_streaming in MODES.items():
            arguments = {key: value for key, value in call.items() if key != "reference"}
            settings = {"non_streaming_mode": non_streaming, "max_new_tokens": self.max_new_tokens}
            waves, rate = generate(**arguments, **extra, **settings, **GREEDY)
            assert rate == 24000
            self.keep(name, f"{name}.{mode}", {**call, **settings}, waves[0])

    def keep(self, name: str, key: str, call: Call, wave: NDArray[np.float32]) -> None:
        kept, tensors = self.kept, self.store.tensors
        # The talker's last step is sampled, but neither its end nor a token at the limit becomes a frame.
        steps = zip(kept["talker_margins"], [*kept["predictor_margins"], 1.0], strict=True)
        closest = [min(step) for step in steps]
        eos = self.wrapper.model.config.talker_config.codec_eos_token_id
        frames = len(kept["codes"])
        self.store.info["calls"][key] = {
            **call,
            **{ids: kept[ids] for ids in ("input_ids", "instruct_ids", "ref_ids")},
            "frames": frames,
            "ended": eos in kept["sampled"],
            "samples": len(wave),
            "min_margin": float(f"{min(closest):.2g}"),
            "safe_frames": next((index for index, margin in enumerate(closest) if margin < SAFE_MARGIN), frames),
        }
        tensors[f"{key}/codes"] = kept["codes"].numpy().astype(np.int16)
        if name in WITH_INPUTS:
            for what in ("prefill", "trailing", "hidden"):
                tensors[f"{key}/{what}"] = kept[what].numpy()
        if name in WITH_WAVE:
            tensors[f"{key}/wave"] = thin(wave)


# ---- (a) preset voices and designed voices, (d) the same for any CustomVoice folder


def custom_voice(folder: Path, shape: ShapeName) -> Store:
    store = Store(shape=shape, kind="custom_voice")
    session = Session(folder, store)
    for name, call in CUSTOM_VOICE.items():
        session.run(name, session.wrapper.generate_custom_voice, call, {})
    return store


def voice_design(folder: Path, shape: ShapeName) -> Store:
    store = Store(shape=shape, kind="voice_design")
    session = Session(folder, store)
    for name, call in VOICE_DESIGN.items():
        session.run(name, session.wrapper.generate_voice_design, call, {})
    return store


def shipped_voice(folder: Path) -> Store:
    def digest(name: str) -> str:
        return hashlib.sha256((folder / name).read_bytes()).hexdigest()

    files = ("config.json", "model.safetensors", "speech_tokenizer/model.safetensors")
    store = Store(kind="custom_voice", sha256={name: digest(name) for name in files})
    session = Session(folder, store, max_new_tokens=61)
    speakers = session.wrapper.get_supported_speakers()
    for index, (name, text) in enumerate(SHIPPED.items()):
        call = {"text": text, "speaker": speakers[index % len(speakers)], "language": "English"}
        session.run(name, session.wrapper.generate_custom_voice, call, {})
    return store


# ---- (c) voice cloning


@contextmanager
def codebook_margins() -> Iterator[list[float]]:
    """Collect the least distance between the nearest and the second nearest codebook entry."""
    closest: list[float] = []
    quantize = MimiEuclideanCodebook.quantize

    def recording_quantize(self: MimiEuclideanCodebook, hidden: torch.Tensor) -> torch.Tensor:
        near = torch.cdist(hidden[None], self.embed[None])[0].topk(2, largest=False).values
        closest.append((near[:, 1] - near[:, 0]).min().item())
        return quantize(self, hidden)

    MimiEuclideanCodebook.quantize = recording_quantize
    yield closest
    MimiEuclideanCodebook.quantize = quantize


def base(folder: Path, shape: ShapeName) -> Store:
    store = Store(shape=shape, kind="base", references={})
    session = Session(folder, store)
    for reference in REFERENCES:
        with codebook_margins() as closest:
            (item,) = session.wrapper.create_voice_clone_prompt(reference_audio(reference), ref_text="-")
        store.tensors[f"references/{reference}/codes"] = item.ref_code.numpy().astype(np.int16)
        store.tensors[f"references/{reference}/x_vector"] = item.ref_spk_embedding.numpy()
        store.info["references"][reference] = {
            "frames": len(item.ref_code),
            "min_margin": float(f"{min(closest):.2g}"),
        }
    for name, call in BASE.items():
        extra = {
            "ref_audio": reference_audio(call["reference"]),
            "x_vector_only_mode": "ref_text" not in call,
        }
        session.run(name, session.wrapper.generate_voice_clone, call, extra)
    return store


def audio() -> Store:
    """Log-mel spectra and resampling, which no weight takes part in."""
    store = Store(mel_stride={"short": 5, "long": 25, "short_44k": 10})
    for name in REFERENCES:
        samples, rate = reference_audio(name)
        if rate != 24000:
            samples = librosa.resample(samples, orig_sr=rate, target_sr=24000)
            store.tensors[f"{name}/resampled"] = thin(samples)
        mel = mel_spectrogram(torch.from_numpy(samples)[None], 1024, 128, 24000, 256, 1024, 0, 12000)[0].T
        store.info[name] = {"samples": len(samples), "mel_frames": len(mel)}
        store.tensors[f"{name}/mel"] = mel[:: store.info["mel_stride"][name]].numpy()
    return store


# ---- the codec alone, (b) logits processors, text ids


def random_codes(codec: Any, frames: int) -> torch.Tensor:
    groups, size = codec.config.decoder_config.num_quantizers, codec.config.decoder_config.codebook_size
    raw = np.random.PCG64(frames).random_raw(frames * groups) % size
    return torch.from_numpy(raw.astype(np.int64).reshape(frames, groups))


def decode(codec: Any, codes: torch.Tensor) -> NDArray[np.float32]:
    with torch.inference_mode():
        return codec.decoder(codes.T[None])[0, 0].numpy()


def codec(folders: dict[ShapeName, Path]) -> Store:
    """80 random frames, more than any window, in one pass; once also the reference's chunks of 300 + 25."""
    store = Store(frames=80, chunked_frames=320)
    for shape, folder in folders.items():
        model = load(folder).model.speech_tokenizer.model
        codes = random_codes(model, 80)
        store.tensors[f"{shape}/codes"] = codes.numpy().astype(np.int16)
        store.tensors[f"{shape}/wave"] = thin(decode(model, codes))
        if shape == "tiny_noproj":  # its window is longer than the context of 25 frames
            codes = random_codes(model, 320)
            with torch.inference_mode():
                wave = model.decode(codes[None]).audio_values[0].numpy()
            difference = np.abs(wave - decode(model, codes))
            assert difference[: 300 * 1920].max() < 1e-5 < difference[300 * 1920 :].max()
            store.tensors[f"{shape}/chunked_codes"] = codes.numpy().astype(np.int16)
            store.tensors[f"{shape}/chunked_wave"] = thin(wave[300 * 1920 :])
    return store


TALKER_SETTINGS: dict[str, Call] = {
    "default": {"do_sample": True, "temperature": 0.9, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.05},
    "greedy": {"do_sample": False, "repetition_penalty": 1.05},
    "greedy_no_penalty": {"do_sample": False, "repetition_penalty": 1.0},
    "temperature_1": {
        "do_sample": True,
        "temperature": 1.0,
        "top_k": 50,
        "top_p": 1.0,
        "repetition_penalty": 1.0,
    },
    "hot": {"do_sample": True, "temperature": 1.7, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.3},
    "cold": {"do_sample": True, "temperature": 0.1, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.05},
    "top_k_1": {"do_sample": True, "temperature": 0.9, "top_k": 1, "top_p": 1.0, "repetition_penalty": 1.05},
    "top_k_4": {"do_sample": True, "temperature": 0.9, "top_k": 4, "top_p": 1.0, "repetition_penalty": 1.05},
    "top_k_huge": {
        "do_sample": True,
        "temperature": 0.9,
        "top_k": 9999,
        "top_p": 1.0,
        "repetition_penalty": 1.05,
    },
    "top_p": {"do_sample": True, "temperature": 0.9, "top_k": 0, "top_p": 0.8, "repetition_penalty": 1.05},
    "top_k_and_p": {
        "do_sample": True,
        "temperature": 1.2,
        "top_k": 20,
        "top_p": 0.5,
        "repetition_penalty": 1.1,
    },
    "top_p_tiny": {
        "do_sample": True,
        "temperature": 0.9,
        "top_k": 50,
        "top_p": 0.001,
        "repetition_penalty": 1.05,
    },
}
PREDICTOR_SETTINGS: dict[str, Call] = {
    "default": {"do_sample": True, "temperature": 0.9, "top_k": 50, "top_p": 1.0},
    "greedy": {"do_sample": False},
    "top_k_4": {"do_sample": True, "temperature": 0.9, "top_k": 4, "top_p": 1.0},
    "top_k_and_p": {"do_sample": True, "temperature": 1.2, "top_k": 20, "top_p": 0.5},
}
HISTORIES: tuple[list[int], ...] = ([], [5], [5, 5, 9, 17, 400, 9, 5, 0, 511, 33], [1, 2, 3, 100, 200, 300])


def random_logits(eos: int, rows: int, vocabulary: int) -> NDArray[np.float32]:
    """Row 3 has whole and half values only, so that many are equal; the end and a forbidden id often lead."""
    raw = np.random.PCG64(3).random_raw(rows * vocabulary).reshape(rows, vocabulary)
    logits = (raw / 2**63 - 1).astype(np.float32) * 6
    logits[3] = np.round(logits[3] * 2) / 2
    logits[:, eos] = (9.0, 8.0, 5.5, 6.0)
    logits[:, vocabulary - 3] = 10.0
    return logits


def captured_processors(wrapper: Qwen3TTSModel, settings: Call) -> tuple[LogitsProcessorList, LogitsProcessorList]:
    """The processors that generate() builds for the talker and for the code predictor."""
    found: dict[str, LogitsProcessorList] = {}

    def capture(owner: Any, name: str) -> None:
        build = type(owner)._get_logits_processor

        def capturing(*args: Any, **kwargs: Any) -> LogitsProcessorList:
            found[name] = build(owner, *args, **kwargs)
            return found[name]

        owner._get_logits_processor = capturing

    talker = wrapper.model.talker
    capture(talker, "talker")
    capture(talker.code_predictor, "predictor")
    wrapper.generate_custom_voice("Hello", "Ryan", max_new_tokens=3, **settings)
    return found["talker"], found["predictor"]


def probabilities(processors: LogitsProcessorList, logits: NDArray[np.float32]) -> NDArray[np.float32]:
    rows = [
        processors(torch.tensor([history], dtype=torch.long), torch.from_numpy(row.copy())[None])
        for history, row in zip(HISTORIES, logits, strict=True)
    ]
    return torch.cat(rows).softmax(-1).numpy()


def logits(folder: Path) -> Store:
    wrapper = load(folder)
    talker = wrapper.model.config.talker_config
    codes, eos = talker.code_predictor_config.vocab_size, talker.codec_eos_token_id
    rows = random_logits(eos, len(HISTORIES), talker.vocab_size)
    store = Store(
        codes=codes,
        eos=eos,
        min_new_tokens=2,
        histories=HISTORIES,
        talker=TALKER_SETTINGS,
        predictor=PREDICTOR_SETTINGS,
    )
    store.tensors["logits"] = rows
    for name, settings in TALKER_SETTINGS.items():
        processors = captured_processors(wrapper, {**settings, "subtalker_dosample": False})[0]
        result = probabilities(processors, rows)
        kept = [*range(codes), eos]
        assert np.delete(result, kept, axis=1).max() == 0
        store.tensors[f"talker/{name}"] = result[:, kept]
    for name, settings in PREDICTOR_SETTINGS.items():
        sub = {f"subtalker_{key}".replace("do_sample", "dosample"): value for key, value in settings.items()}
        processors = captured_processors(wrapper, {"do_sample": False, **sub})[1]
        store.tensors[f"predictor/{name}"] = probabilities(processors, rows[:, :codes])
    return store


def text_ids(folder: Path) -> Store:
    tokenizer = load(folder).processor.tokenizer
    return Store(texts=[{"text": text, "ids": tokenizer(text)["input_ids"]} for text in TRICKY_TEXTS])


def make_all(out: Path, work: Path) -> None:
    custom = {shape: write_checkpoint(work / f"custom-{shape}", shape, "custom_voice") for shape in SHAPES}
    text_ids(custom["tiny"]).save(out / "text_ids")
    logits(custom["tiny_32"]).save(out / "logits")
    codec(custom).save(out / "codec")
    audio().save(out / "audio")
    for shape, folder in custom.items():
        custom_voice(folder, shape).save(out / f"custom_voice-{shape}")
        base(write_checkpoint(work / f"base-{shape}", shape, "base"), shape).save(out / f"base-{shape}")
        if shape != "tiny_noproj":  # no such model was released
            designed = write_checkpoint(work / f"design-{shape}", shape, "voice_design")
            voice_design(designed, shape).save(out / f"voice_design-{shape}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, help="a CustomVoice folder to record")
    parser.add_argument("--out", type=Path, help="file to write for --checkpoint; the suffixes are added")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.checkpoint:
        shipped_voice(arguments.checkpoint).save(arguments.out)
        return
    with tempfile.TemporaryDirectory() as work:
        make_all(HERE, Path(work))


if __name__ == "__main__":
    main()
