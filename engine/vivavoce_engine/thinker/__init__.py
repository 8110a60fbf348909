"""Thinkers: the models that read a conversation and write the answer that a talker speaks."""
