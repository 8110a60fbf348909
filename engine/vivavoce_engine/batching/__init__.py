"""Continuous batching of utterances, frame by frame. Torch-free; the runner behind it computes."""
