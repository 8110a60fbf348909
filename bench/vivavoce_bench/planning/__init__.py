"""Simulation of an engine from recorded step times: `vivavoce bench plan`."""
