"""LangChain's ChatOpenAI: `python -m tests.clients.langchain_client URL`."""

import sys

import openai
import tiktoken
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from tests.clients.checks import error_of, run_checks

URL = sys.argv[1]
PROMPT = "Ahoy, who are you?"
TEXTS = ["the sea", "a ship"]


def chat(model: str, **more: object) -> ChatOpenAI:
    """Return a greedy model."""
    how = {"base_url": f"{URL}/v1", "api_key": "none", "max_tokens": 16, "temperature": 0, "max_retries": 0}
    return ChatOpenAI(model=model, **how, **more)


def embeddings(model: str, *, check_embedding_ctx_length: bool = False) -> OpenAIEmbeddings:
    """Return what embeds texts, as they are unless their length is to be checked."""
    return OpenAIEmbeddings(
        model=model,
        base_url=f"{URL}/v1",
        api_key="none",
        max_retries=0,
        check_embedding_ctx_length=check_embedding_ctx_length,
    )


def adapters_are_chosen_by_name_and_by_list() -> None:
    base, pirate = (str(chat(name).invoke(PROMPT).content) for name in ("smollm2", "pirate"))
    assert base != pirate
    mixed = chat("smollm2", extra_body={"lora": [{"id": 0, "scale": 1.0}]}).invoke(PROMPT)
    assert mixed.content == pirate


def usage_is_read() -> None:
    usage = chat("smollm2").invoke(PROMPT).usage_metadata
    assert usage is not None
    assert usage["output_tokens"] > 0


def a_chat_is_streamed_with_usage() -> None:
    chunks = list(chat("pirate", stream_usage=True).stream(PROMPT))
    assert "".join(str(chunk.content) for chunk in chunks) == chat("pirate").invoke(PROMPT).content
    assert any(chunk.usage_metadata for chunk in chunks)


def an_answer_has_the_form_of_a_schema() -> None:
    schema = {
        "title": "sky",
        "description": "The sky.",
        "type": "object",
        "properties": {"colour": {"type": "string", "enum": ["blue", "green"]}},
        "required": ["colour"],
        "additionalProperties": False,
    }
    answer = chat("smollm2").with_structured_output(schema, method="json_schema").invoke("Which colour is the sky?")
    assert isinstance(answer, dict)
    assert answer["colour"] in ("blue", "green")


def a_tool_is_called_whole_and_streamed() -> None:
    def get_weather(city: str) -> str:
        """Tell how the weather is in a city."""
        return city

    model = chat("smollm2").bind_tools([get_weather], tool_choice="required", parallel_tool_calls=False)
    asking = model.bind(max_tokens=96)
    whole = asking.invoke("How is the weather in Rome?").tool_calls
    first, *more = asking.stream("How is the weather in Rome?")
    streamed = sum(more, first).tool_calls
    for calls in (whole, streamed):
        assert [call["name"] for call in calls] == ["get_weather"]
        assert isinstance(calls[0]["args"]["city"], str)


def responses_give_the_same() -> None:
    assert chat("pirate", use_responses_api=True).invoke(PROMPT).text == chat("pirate").invoke(PROMPT).text


def texts_are_embedded_as_they_are() -> None:
    base, pirate = (embeddings(name).embed_documents(TEXTS) for name in ("smollm2", "pirate"))
    assert len(base) == len(TEXTS)
    assert base[0] != base[1]
    assert base[0] != pirate[0]
    assert embeddings("pirate").embed_query(TEXTS[0]) == pirate[0]


def texts_are_embedded_as_token_ids() -> None:
    # LangChain's default is to send ids, of a tokenizer that tiktoken knows by the model's name.
    client = openai.OpenAI(base_url=URL, api_key="none")
    ranks: dict[bytes, int] = {}
    for text in TEXTS:
        tokens = client.post("/tokenize", body={"content": text, "with_pieces": True}, cast_to=object)
        assert isinstance(tokens, dict)
        ranks |= {token["piece"].encode(): token["id"] for token in tokens["tokens"]}
    words = tiktoken.Encoding("words", pat_str=r" ?\w+", mergeable_ranks=ranks, special_tokens={})
    tiktoken.registry.ENCODINGS["words"] = words
    tiktoken.model.MODEL_TO_ENCODING["pirate"] = "words"
    sent_as_ids = embeddings("pirate", check_embedding_ctx_length=True).embed_documents(TEXTS)
    for ours, theirs in zip(sent_as_ids, embeddings("pirate").embed_documents(TEXTS), strict=True):
        assert all(abs(a - b) < 1e-6 for a, b in zip(ours, theirs, strict=True))


def bad_requests_are_the_clients_own_errors() -> None:
    unknown = chat("smollm2", extra_body={"lora": [{"id": 7, "scale": 1}]})
    assert "lora" in error_of(openai.BadRequestError, lambda: unknown.invoke(PROMPT))


if __name__ == "__main__":
    run_checks(
        "langchain-openai",
        adapters_are_chosen_by_name_and_by_list,
        usage_is_read,
        a_chat_is_streamed_with_usage,
        an_answer_has_the_form_of_a_schema,
        a_tool_is_called_whole_and_streamed,
        responses_give_the_same,
        texts_are_embedded_as_they_are,
        texts_are_embedded_as_token_ids,
        bad_requests_are_the_clients_own_errors,
    )
