"""Voices: preset speakers, stored voices, mixes, and clones of reference audio. `registry.py` is the entry."""
