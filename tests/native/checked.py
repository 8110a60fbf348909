"""A plugin of pytest, beside site/sitecustomize.py: each packed array is memory that the sanitizer knows."""

from vivavoce_engine.cpu import packing

packing.ARENA_LEAST = 1 << 62
