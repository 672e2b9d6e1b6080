"""Which of llama.cpp's tests say nothing about this server, and why. Every other one has to pass.

A pattern is a test's file, name and parameters, with `*` for anything. Parameters in brackets follow a name.
"""

import re

STORIES = "stories260K, a model that is not at hand: "
_TOKENS = STORIES + "counts the tokens of its vocabulary"
_TEXT = STORIES + "expects its text"
_BERT_TOKENS = "bge-small, a model that is not at hand: counts the tokens of its vocabulary"
_INFILL_TEXT = "stories260K-infill, a model that is not at hand: expects its text"
_NO_UI = "a web interface, which there is none of"
_NO_IMAGES = "images, which are not supported"
_NO_ROUTER = "a router that starts servers for models, which there is none of"
_NO_DRAFTS = "speculative decoding, which there is none of"
_NO_TOOLS = "tools that the server runs itself, which there are none of"
_NO_PROXY = "a proxy for other servers, which there is none of"
_USER_ERROR = "expects status 500 for a user's error, which is a 400 here"

NOT_APPLICABLE = {
    "test_basic.py::test_load_split_model": "a model to download, in several files",
    "test_basic.py::test_no_ui": _NO_UI,
    "test_chat_completion.py::test_chat_completion[*": _TOKENS,
    "test_chat_completion.py::test_chat_completion_cached_tokens": _TOKENS,
    "test_chat_completion.py::test_chat_completion_stream[*": _TOKENS,
    "test_chat_completion.py::test_chat_completion_with_openai_library": _TEXT,
    "test_chat_completion.py::test_return_progress[*": _TOKENS,
    "test_compat_anthropic.py::test_anthropic_tool_result_with_image": _USER_ERROR,
    "test_compat_anthropic.py::test_anthropic_vision_base64_with_multimodal_model": _NO_IMAGES,
    "test_compat_anthropic.py::test_anthropic_vision_format_accepted": _USER_ERROR,
    "test_compat_oai_responses.py::test_responses_stream_with_openai_library": _TEXT,
    "test_compat_oai_responses.py::test_responses_with_openai_library": _TEXT,
    "test_completion.py::test_completion[*": _TOKENS,
    "test_completion.py::test_completion_prompt_cache": _TOKENS,
    "test_completion.py::test_completion_stream[*": _TOKENS,
    "test_completion.py::test_completion_stream_with_openai_library": _TEXT,
    "test_completion.py::test_completion_with_openai_library": _TEXT,
    "test_completion.py::test_n_probs_post_backend_sampling": "samplers on the device, which there are none of",
    "test_ctx_shift.py::test_ctx_shift_disabled_short_prompt[-1*": _TOKENS,
    "test_ctx_shift.py::test_ctx_shift_enabled": _TOKENS,
    "test_embedding.py::test_embedding_error_prompt_too_long": "words for a limit of inputs that there is none of",
    "test_embedding.py::test_embedding_multiple_with_fa": _BERT_TOKENS,
    "test_embedding.py::test_embedding_pooling_none": _BERT_TOKENS,
    "test_embedding.py::test_embedding_usage_*": _BERT_TOKENS,
    "test_infill.py::test_infill_with*": _INFILL_TEXT,
    "test_kv_keep_only_active.py::*": "reads lines of llama-server's log",
    "test_mcp_servers.py::*": _NO_TOOLS,
    "test_proxy.py::*": _NO_PROXY,
    "test_rerank.py::*": "a reranking model, which is not supported",
    "test_router.py::*": _NO_ROUTER,
    "test_security.py::test_access_static_assets_without_api_key": _NO_UI,
    "test_security.py::test_cors_origins_*": _NO_ROUTER,
    "test_security.py::test_cors_proxy_*": _NO_PROXY,
    "test_security.py::test_local_media_file[*": _NO_IMAGES,
    "test_slot_save.py::test_slot_erase": _TOKENS,
    "test_slot_save.py::test_slot_restore_legacy_token_list": "the layout of llama-server's files",
    "test_slot_save.py::test_slot_restore_media_*": _NO_IMAGES,
    "test_slot_save.py::test_slot_save_restore": _TOKENS,
    "test_slot_save.py::test_slot_save_restore_*image*": _NO_IMAGES,
    "test_slot_save.py::test_slot_save_restore_text_only_on_multimodal": _NO_IMAGES,
    "test_speculative.py::*": _NO_DRAFTS,
    "test_stream.py::*": _NO_ROUTER,
    "test_systemone.py::*": "decision models, which are not supported",
    "test_tools_builtin.py::*": _NO_TOOLS,
    "test_vision_api.py::*": _NO_IMAGES,
}

SLOW = "a model of gigabytes to download"


def reason_of(test: str) -> str | None:
    """Return why a test (`test_basic.py::test_no_ui`) is not applicable; None where it is."""
    return next((reason for pattern, reason in NOT_APPLICABLE.items() if matches(pattern, test)), None)


def matches(pattern: str, test: str) -> bool:
    """Whether a pattern names a test."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), test) is not None
