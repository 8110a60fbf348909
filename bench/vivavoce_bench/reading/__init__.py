"""The reading of written text on this machine: its time, start and memory."""
