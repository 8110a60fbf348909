"""Trains the small voice that Vivavoce ships: text, teacher speech, codes, talker and codec decoder, checkpoint."""
