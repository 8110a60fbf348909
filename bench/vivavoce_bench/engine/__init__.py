"""The engine on this machine: `vivavoce bench engine`, `steps` and `acceptance`."""
