"""Evaluation of speech: judges, a report against a voice's reference figures, and a study of the numerics.

The speech comes from a running server through the client. Only the study imports the engine, and nothing imports the
server. The command `vivavoce eval` imports this package, and a server that judges the recordings of voices by asr.py.
"""
