"""POST /v1/chat/completions: conversations that a thinker answers, and its talker speaks while it still writes."""
