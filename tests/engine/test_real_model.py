"""Staggered requests on trained models: each is, byte for byte, what it is alone."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

import culet
from culet.cli.options import resolve_model
from culet.engine.request import EnginePrompt, SamplingParams
from support.builtin_model import MODEL_PATH, needs_builtin

TEXTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):",
    "Water boils at",
    "Dear Sir or Madam, I am writing to",
    "1, 1, 2, 3, 5, 8,",
    "La plume de ma tante est",
    "The three laws of thermodynamics are",
)
NUM_REQUESTS = 48


@pytest.mark.weights
@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_staggered_requests_are_what_they_are_alone(kv_type: str) -> None:
    try:
        path = resolve_model("gemma3-270m")
    except culet.UsageError as error:
        pytest.skip(str(error))
    assert_staggered_is_alone(path, kv_type)


@needs_builtin
@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_staggered_requests_to_the_builtin_model(kv_type: str) -> None:
    assert_staggered_is_alone(MODEL_PATH, kv_type)


def assert_staggered_is_alone(path: Path, kv_type: str) -> None:
    rng = random.Random(0)
    with culet.load(path, context_length=1024, kv_type=kv_type) as llm:  # type: ignore[arg-type]
        asked = staggered_requests(llm, rng)
        alone = []
        for prompt, params in asked:
            alone.append(llm.engine.submit(prompt, params).result()[0].token_ids)
            llm.engine.clear_prefix_cache()
        handles = []
        for prompt, params in asked:
            handles.append(llm.engine.submit(prompt, params))
            time.sleep(rng.random() * 0.05)
        assert [handle.result()[0].token_ids for handle in handles] == alone
        assert len({tuple(tokens) for tokens in alone}) == NUM_REQUESTS
        assert llm.engine.metrics.cached_tokens.value > 0


def staggered_requests(
    llm: culet.LLM, rng: random.Random
) -> list[tuple[EnginePrompt, SamplingParams]]:
    """Prompts of up to some 300 tokens with beginnings in common; half are sampled greedily."""
    asked = []
    for index in range(NUM_REQUESTS):
        chosen = rng.sample(TEXTS, rng.randint(1, len(TEXTS)))
        text = "\n".join(chosen) * rng.randint(1, 3)
        prompt = EnginePrompt(llm.tokenizer.encode(f"{text}\nPart {index} of"))
        greedy = index % 2 == 0
        params = SamplingParams(
            max_tokens=64,
            seed=index,
            temperature=0.0 if greedy else 1.0,
            top_k=64,
            top_p=0.95,
            ignore_eos=True,
        )
        asked.append((prompt, params))
    return asked
