"""Processes of this package, and messages between them."""
