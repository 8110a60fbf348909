"""Single keys of a JSON file are set, and nothing else in it changes."""

import json
from pathlib import Path

import pytest
from vivavoce_eval.json_edit import replace_file, set_keys
from vivavoce_voice import CHECKPOINT

KEYS = {"heads": [[3, 4]], "offset": -45}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{\n    "a": 1e-06\n}\n', '{\n    "a": 1e-06,\n    "heads": [[3, 4]],\n    "offset": -45\n}\n'),
        ('{"a": {"heads": 7}}', '{"a": {"heads": 7}, "heads": [[3, 4]], "offset": -45}'),
        ('{"offset" : 1 ,"heads":[ ],\r\n"a":"}"}\r\n', '{"offset" : -45 ,"heads":[[3, 4]],\r\n"a":"}"}\r\n'),
        ('{\n\t"heads": null,\n\t"é": "ü"\n}', '{\n\t"heads": [[3, 4]],\n\t"é": "ü",\n\t"offset": -45\n}'),
        ("{}", '{"heads": [[3, 4]], "offset": -45}'),
    ],
)
def test_keys_are_set_in_place_or_at_the_end(before: str, after: str) -> None:
    assert set_keys(before, KEYS) == after
    assert json.loads(after) == {**json.loads(before), **KEYS}
    assert set_keys(after, KEYS) == after


def test_a_list_is_refused() -> None:
    with pytest.raises(ValueError, match="no JSON object"):
        set_keys("[1]", KEYS)


def test_the_file_of_the_shipped_voice_keeps_its_lines() -> None:
    text = (CHECKPOINT / "generation_config.json").read_text(encoding="utf-8")
    added = [line for line in set_keys(text, KEYS).splitlines() if line.rstrip(",") not in text]
    assert added == ['  "heads": [[3, 4]],', '  "offset": -45']


def test_a_file_is_replaced_and_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text("{}")
    path.chmod(0o640)
    replace_file(path, '{"a": 1}\r\n')
    assert path.read_bytes() == b'{"a": 1}\r\n'
    assert path.stat().st_mode & 0o777 == 0o640
    assert [file.name for file in tmp_path.iterdir()] == ["file.json"]
