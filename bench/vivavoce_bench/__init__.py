"""Measurement of speech servers, of the engine and of graphics cards."""
