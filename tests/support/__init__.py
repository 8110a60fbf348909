"""Helpers of the tests: random checkpoints, reference audio, and the stored reference outputs."""
