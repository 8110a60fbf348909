"""Is the speech good? Judges of speech, a report against a voice's reference figures, and a study of the numerics.

Speaks through a running server by way of the client; the study alone uses the engine. Nothing of the server is
imported, and nothing imports this package but its command and the recipe of the shipped voice.
"""
