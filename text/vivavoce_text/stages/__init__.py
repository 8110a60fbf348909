"""Stages of reading. Each module has `apply(text, context)`, which changes the text of one piece."""
