"""Text to token ids: prompts, and ids of live text that later text cannot change."""
