"""The engine on this machine: `vivavoce bench engine` and `vivavoce bench steps`."""
