"""The side of an engine that callers hold: requests go in, streams of audio come out."""
