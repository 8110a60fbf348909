"""The shipped voice reads written text, before Whisper base. Run by `make test-quality`."""

import argparse
import json
from pathlib import Path

import pytest
from vivavoce_eval import cli

from tests.support.server_process import serving

pytestmark = [
    pytest.mark.quality,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the judges' packages
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
PAIRS = Path(__file__).parents[1] / "text" / "written_forms.tsv"
MOST_ERRORS = 18.0
"""Percent of the words. The same pairs have more errors if the voice gets the text as it is written."""


def test_read_text_is_heard_as_expected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    with serving(tmp_path) as (_, url):
        asked = ["text", "--url", url, "--pairs", str(PAIRS), "--limit", "60", "--variants", "raw", "read", "--show"]
        assert cli.run(parser.parse_args(asked)) == 0
    printed = capsys.readouterr().out
    figures = json.loads(printed.splitlines()[-1])["variants"]
    assert figures["read"]["texts"] == figures["raw"]["texts"] == 60
    assert figures["read"]["errors"] <= MOST_ERRORS, printed
    assert figures["read"]["errors"] < figures["raw"]["errors"], printed
