"""The lm-evaluation-harness with its client for completions: `python -m tests.clients.lm_eval_client NAME URL TOKENIZER
FOLDER`. It scores prompts that it has made tokens of itself.
"""

import sys

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

from tests.clients.checks import run_checks

_, _, URL, TOKENIZER, _ = sys.argv


def harness(model: str) -> LocalCompletionsAPI:
    """Return its client of one model, which sends two prompts at once."""
    return LocalCompletionsAPI(
        model=model,
        base_url=f"{URL}/v1/completions",
        tokenizer_backend="huggingface",
        tokenizer=TOKENIZER,
        batch_size=2,
        max_retries=1,
    )


def scores(model: str, *pairs: tuple[str, str]) -> list[tuple[float, bool]]:
    """Return how likely texts follow others, and whether they are the likeliest."""
    asked = [Instance("loglikelihood", {}, pair, index) for index, pair in enumerate(pairs)]
    return [(float(score), bool(is_greedy)) for score, is_greedy in harness(model).loglikelihood(asked)]


def continuations_are_scored() -> None:
    context = "The capital of France is"
    (paris, is_greedy), (berlin, _), (colour, _) = scores(
        "smollm2", (context, " Paris"), (context, " Berlin"), ("The sky is", " blue")
    )
    assert is_greedy
    assert berlin < paris < 0
    assert colour < 0


def an_adapter_gives_other_scores() -> None:
    pair = ("The capital of France is", " Paris")
    assert scores("pirate", pair) != scores("smollm2", pair)


def texts_are_generated_until_a_stop() -> None:
    asked = Instance("generate_until", {}, ("The capital of France is", {"until": ["."], "max_gen_toks": 8}), 0)
    [text] = harness("smollm2").generate_until([asked])
    assert "Paris" in text
    assert "." not in text


if __name__ == "__main__":
    run_checks("lm_eval", continuations_are_scored, an_adapter_gives_other_scores, texts_are_generated_until_a_stop)
