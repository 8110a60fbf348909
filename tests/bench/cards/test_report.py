"""The document that joins the figures of several benchmarks."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import vivavoce_bench.cards.report as gpu_report
from vivavoce_bench.cards.report import fronts_of, report, servers, short_name

CARD = "NVIDIA H100 80GB HBM3"
CODEC = {"versions": {"card": CARD, "torch": "2.11"}, "graph_ms": {"1x1": 0.5368, "64x4": 4.4544}, "memory_gb": 1.0}
FRAME = {
    "card": CARD,
    "torch": "2.11",
    "times 1.7b dependent launch 1 deterministic 0": {
        "200": {"1": 3.0881, "64": 5.5349},
        "1000": {"1": 3.2, "64": 8.0},
    },
    "times 1.7b dependent launch 1 deterministic 1": {"200": {"1": 4.1}, "1000": {"1": 4.3}},
    "times 1.7b dependent launch 0 deterministic 0": {"200": {"1": 9.0}, "1000": {"1": 9.0}},
    "check 1.7b": {"graph equals launches": True},
}
RUN = {"streams": 64, "audio_s_per_s": 781.5, "first_audio_ms_median": 60.0, "dry_streams": 0, "dry_s_max": 0.0}
ENGINE = {
    "card": CARD,
    "model": "1.7b",
    "steps_ahead": 1,
    "first_pcm_ms": 9.1,
    "first_pcm_ms_worst": 10.3,
    "runs": [RUN],
    "burst": {"running": 64, "first_audio_ms_mean": 30.0},
}
PEER = {"card": CARD, "versions": {"faster-qwen3-tts": "0.5.4"}, "command": "peer", "frame_ms": {"1.7b": {"1": 19.8}}}


def test_figures_have_their_usual_names() -> None:
    assert report(CODEC, FRAME, ENGINE, {**PEER, "packages_replaced": []}) == {
        "card": CARD,
        "frame_ms": {"1.7b": {"1": 4.1}},
        "frame_ms_context_1000": {"1.7b": {"1": 4.3}},
        "frame_ms_without_deterministic": {"1.7b": {"1": 3.088, "64": 5.535}},
        "code2wav_us_per_frame": {"1x1": 536.8, "64x4": 17.4},
        "engine_audio_s_per_s": {"1.7b": {"64": 781.5}},
        "engine_dry_streams": {"1.7b": {"64": 0}},
        "first_pcm_ms": 9.1,
        "first_pcm_ms_worst": 10.3,
        "steps_ahead": 1,
        "burst": {"1.7b": ENGINE["burst"]},
        "peers": {"faster-qwen3-tts": {key: PEER[key] for key in ("versions", "command", "frame_ms")}},
    }
    assert not {"peers", "burst"} & report(CODEC, FRAME, {**ENGINE, "burst": None}).keys()


def test_servers_are_told_apart_by_their_fronts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(fronts: str, card: str = CARD) -> dict[str, Any]:
        return {"cards": [card], "command": f"python -m x --out o -- --max-streams 256 {fronts}", "server": {}}

    one, four = measured("--fronts=1 --log-level warning"), measured("--fronts 4")
    assert servers([four, one]) == {"card": CARD, "fronts": {"1": one, "4": four}}
    with pytest.raises(ValueError, match="twice with --fronts 4"):
        servers([four, one, four])
    with pytest.raises(ValueError, match="several cards"):
        servers([one, measured("--fronts 4", "NVIDIA H200")])
    for unsaid in ("", "--fronts auto", "--fronts"):
        with pytest.raises(ValueError, match="without --fronts NUMBER"):
            fronts_of(measured(unsaid)["command"])
    paths = [tmp_path / name for name in ("a.json", "b.json")]
    for path, document in zip(paths, (one, four), strict=True):
        path.write_text(json.dumps(document))
    monkeypatch.setattr(sys, "argv", ["report", "--servers", *map(str, paths), "--out", str(tmp_path)])
    gpu_report.main()
    assert list(json.loads((tmp_path / "fronts-h100.json").read_text())["fronts"]) == ["1", "4"]


def test_figures_of_two_cards_are_not_mixed() -> None:
    with pytest.raises(ValueError, match=r"several cards.*H200"):
        report(CODEC, FRAME, {**ENGINE, "card": "NVIDIA H200"})


@pytest.mark.parametrize(
    ("card", "name"), [(CARD, "h100"), ("NVIDIA H200", "h200"), ("NVIDIA GeForce RTX 4090", "4090"), ("Tesla", "gpu")]
)
def test_a_card_has_a_short_name(card: str, name: str) -> None:
    assert short_name(card) == name


def test_a_document_keeps_what_was_recorded_by_others_on_that_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, measured in (("codec", CODEC), ("frame", FRAME), ("engine", ENGINE), ("peer", PEER)):
        (tmp_path / f"{name}.json").write_text(json.dumps(measured))
    document = tmp_path / "engine-h100.json"

    def run(before: dict[str, Any]) -> Any:
        document.write_text(json.dumps(before))
        peer = ("--peer", str(tmp_path / "peer.json"))
        monkeypatch.setattr(sys, "argv", ["cards/report.py", str(tmp_path), "--out", str(tmp_path), *peer])
        gpu_report.main()
        return json.loads(document.read_text())

    kept = run({"card": CARD, "host_ms": {"1": 0.03}, "first_pcm_ms": 99.0})
    assert (kept["host_ms"], kept["first_pcm_ms"], kept["command"]) == ({"1": 0.03}, 9.1, "make bench-gpu")
    assert set(kept["versions"]) == {"torch", "triton", "python"}, "of this machine, where the result has none"
    assert "host_ms" not in run({"card": "NVIDIA H100 NVL", "host_ms": {"1": 0.03}})
    (tmp_path / "engine.json").write_text(json.dumps({**ENGINE, "versions": {"torch": "2.99"}}))
    assert run({})["versions"] == {"torch": "2.99"}, "of the machine that was measured"
