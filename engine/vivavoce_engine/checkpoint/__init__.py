"""A checkpoint on the disk: its configuration files and where its weights are."""
