"""The CPU's table is made of what runs of `bench engine` print."""

import json
from pathlib import Path

from vivavoce_bench.engine.cpu_table import main, table


def printed(path: Path, machine: str, *runs: tuple[int, float]) -> str:
    """Writes the output of a run whose streams have these RTF. Returns its path."""
    figures = [
        {
            "streams": streams,
            "frames_per_s": 12.5 * streams / rtf,
            "rtf": rtf,
            "ttfa_ms_median": 17.4,
            "share": {"prompts": 0.03, "frames": 0.97},
        }
        for streams, rtf in runs
    ]
    path.write_text(f"a line for people\n{json.dumps({'machine': machine, 'versions': {}, 'runs': figures})}\n")
    return str(path)


def test_the_better_of_two_runs_is_a_row_for_each_number_of_streams(tmp_path: Path) -> None:
    first = printed(tmp_path / "1", "native avx512", (2, 0.2), (1, 0.1))
    other = printed(tmp_path / "2", "torch", (1, 0.5))
    second = printed(tmp_path / "3", "native avx512", (1, 0.08), (2, 0.25))
    file = tmp_path / "document.json"
    main([first, other, second, "-o", str(file), "--machine", "two cores", "--command", "vivavoce bench engine"])
    document = json.loads(file.read_text())
    assert (document["machine"], document["command"]) == ("two cores", "vivavoce bench engine")
    assert table(document["engines"])[1:] == [
        ["native avx512", "1", "156.2", "0.08", "17 ms", "prompts 3%, frames 97%"],
        ["", "2", "125.0", "0.20", "17 ms", "prompts 3%, frames 97%"],
        ["torch", "1", "25.0", "0.50", "17 ms", "prompts 3%, frames 97%"],
    ]
