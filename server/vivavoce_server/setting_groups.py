"""The groups in which `vivavoce serve --help` shows the settings."""

from collections.abc import Iterable

GROUPS: dict[str, tuple[str, ...]] = {
    "model": (
        "model",
        "model_name",
        "load",
        "model_ttl_s",
        "workers",
        "fronts",
        "device",
        "runner",
        "dtype",
        "threads",
        "gpu_memory",
        "eager",
        "deterministic",
        "alignment_heads",
        "alignment_offset_ms",
    ),
    "network": (
        "host",
        "port",
        "uds",
        "uds_mode",
        "root_path",
        "ssl_certfile",
        "ssl_keyfile",
        "ssl_keyfile_password",
        "ssl_ca_certs",
        "wyoming_port",
        "wyoming_host",
        "wyoming_zeroconf",
        "address_file",
        "grace_s",
    ),
    "who may call": (
        "api_keys",
        "api_keys_file",
        "key_max_concurrent",
        "key_requests_per_minute",
        "allowed_hosts",
        "cors_origins",
        "trusted_proxies",
    ),
    "chat": (
        "thinker",
        "thinker_model",
        "thinker_key",
        "thinker_stall_s",
        "thinker_device",
        "thinker_dtype",
        "thinker_conversations",
        "thinker_max_context",
        "chat_max_tokens",
    ),
    "text and audio": (
        "normalize",
        "strict_text",
        "strict",
        "default_seed",
        "leading_silence",
        "mark_audio",
    ),
    "voices": (
        "voices_dir",
        "max_voices",
        "voice_aliases",
        "ref_audio_hosts",
        "ref_text_check",
        "ref_text_judge",
    ),
    "limits of requests": (
        "max_input_chars",
        "max_part_chars",
        "max_batch_items",
        "max_body_bytes",
        "max_wait_s",
        "stall_s",
        "live_max_sessions",
        "live_max_chars",
        "live_idle_s",
        "live_max_unsent_bytes",
        "live_stall_s",
    ),
    "limits of the engine": (
        "max_streams",
        "max_queue",
        "max_queue_s",
        "max_context",
        "kv_positions",
        "max_prefills_per_step",
        "max_chunk_frames",
        "max_unread_s",
        "max_step_s",
    ),
    "phrase cache": (
        "cache_dir",
        "cache_size_mb",
    ),
    "settings and logs": (
        "config",
        "log_level",
        "log_format",
        "otlp_endpoint",
    ),
}
"""Title → settings, in the order of the help. tests/server/test_settings.py asks for every setting once."""
OTHERS = "other settings"


def grouped(names: Iterable[str]) -> dict[str, list[str]]:
    """The groups with those of these settings that they hold. Settings without a group come last."""
    rest = dict.fromkeys(names)
    groups = {title: [name for name in members if name in rest] for title, members in GROUPS.items()}
    placed = {name for members in groups.values() for name in members}
    groups[OTHERS] = [name for name in rest if name not in placed]
    return {title: members for title, members in groups.items() if members}
