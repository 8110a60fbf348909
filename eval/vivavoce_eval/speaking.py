"""Sources of speech: a server, or a folder of sound files."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from vivavoce_client import Client
from vivavoce_client.protocol import SpeechOptions

from vivavoce_eval.errors import Unusable
from vivavoce_eval.hearing import Spoken, frame_limit
from vivavoce_eval.sentences import Sentence
from vivavoce_eval.waves import from_pcm, read_wav


def speaker_of(sentence: Sentence, speakers: Sequence[str]) -> str:
    """Speaker of a sentence. Speakers take turns."""
    return speakers[sentence.number % len(speakers)]


def through_server(
    client: Client, sentences: Sequence[Sentence], speakers: Sequence[str], options: SpeechOptions
) -> Iterator[Spoken]:
    """Speaks the sentences one after the other. The seed is the number of the sentence.

    Leading silence is kept, because it is one of the figures.

    Raises:
        VivavoceError: the server cannot be reached, or refuses a request.
    """
    for sentence in sentences:
        speaker = speaker_of(sentence, speakers)
        asked: SpeechOptions = {
            **options,
            "seed": sentence.number,
            "max_new_tokens": frame_limit(sentence.text),
            "leading_silence": "keep",
        }
        yield Spoken(sentence, speaker, from_pcm(client.speak(sentence.text, speaker, **asked)))


def from_folder(folder: Path, sentences: Sequence[Sentence], speakers: Sequence[str]) -> Iterator[Spoken]:
    """Reads files named by the sentences' numbers (007.wav). Sentences without a file are left out.

    Raises:
        Unusable: no sentence has a file.
    """
    files = {int(path.stem): path for path in folder.glob("*.wav") if path.stem.isdecimal()}
    found = [sentence for sentence in sentences if sentence.number in files]
    if not found:
        raise Unusable(f"{folder} has no sound file of any sentence; they are called 000.wav, 001.wav, …")
    for sentence in found:
        yield Spoken(sentence, speaker_of(sentence, speakers), read_wav(files[sentence.number]))
