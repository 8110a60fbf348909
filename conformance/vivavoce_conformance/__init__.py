"""Conformance of speech servers with OpenAI's speech API: `vivavoce conformance URL`."""
