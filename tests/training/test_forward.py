"""The training forward is transformers'; training resumes as if it had not stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from training.batches import encode, step_batches
from training.dialogue import Segments
from training.forward import loss_sum, trained_logits
from training.model import make_config, make_model
from training.optimizer import orthogonal, rate_at
from training.tokenizer import Vocabulary, build, train
from training.train import Run, fit
from transformers import Gemma4ForCausalLM


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return train(["a small text with few words"])


@pytest.fixture(scope="module")
def tokenizer(vocabulary: Vocabulary) -> Tokenizer:
    return build(vocabulary)


def fresh(vocabulary: Vocabulary) -> Gemma4ForCausalLM:
    return make_model(make_config(vocabulary), seed=5)


def test_targets_follow_their_queries(tokenizer: Tokenizer) -> None:
    segments = Segments()
    segments.add("ab", False)
    segments.add("cd", True)
    segments.add("ef", False)
    ids, query = encode(tokenizer, segments)
    assert tokenizer.decode([ids[place + 1] for place in query]) == "cd"
    assert tokenizer.decode(ids) == "abcd"


@torch.inference_mode()
def test_logits_are_those_of_transformers(vocabulary: Vocabulary, tokenizer: Tokenizer) -> None:
    model = fresh(vocabulary)
    for parameter in model.parameters():  # a fresh model hides much behind zeros and ones
        parameter.add_(torch.randn(parameter.shape, generator=torch.manual_seed(1)) * 0.05)
    batches = list(step_batches(tokenizer, 1, 0))
    # The windows and the padding matter only in a long batch and in an uneven one.
    for batch in (batches[0], batches[-1]):
        expected = model(input_ids=batch.tokens.spread(batch.ids)).logits
        expected = batch.tokens.gather(expected)[batch.query]
        # fp32 sums of up to 512 terms in another order, through ten layers; logits reach tens.
        torch.testing.assert_close(trained_logits(model, batch), expected, rtol=0, atol=2e-3)


def test_loss_is_that_of_the_next_tokens(vocabulary: Vocabulary, tokenizer: Tokenizer) -> None:
    model = fresh(vocabulary)
    batch = next(iter(step_batches(tokenizer, 1, 1)))
    # A query's target is the token after it; that of an item's last one is not in the batch.
    after = batch.query + 1
    inside = after < len(batch.ids)
    inside &= batch.tokens.position[after.clamp(max=len(batch.ids) - 1)] > 0
    assert torch.equal(batch.ids[after[inside]], batch.target[inside])
    logits = trained_logits(model, batch).log_softmax(-1)
    expected = -logits.gather(1, batch.target[:, None]).sum()
    torch.testing.assert_close(loss_sum(model, batch), expected)


def test_orthogonal_has_singular_values_near_one() -> None:
    x = torch.randn(3, 40, 16, generator=torch.manual_seed(2))
    values = torch.linalg.svdvals(orthogonal(x))
    # The quintic's fixed band, Jordan et al. 2024: about 0.7 to 1.2.
    assert values.min() > 0.6 and values.max() < 1.3


def test_rate_rises_stays_and_falls_to_zero() -> None:
    shares = [rate_at(step, 400) for step in range(401)]
    assert shares[0] < shares[10] < shares[20] == 1.0 == shares[150]
    assert shares[399] > shares[400] == 0.0
    assert shares[200:] == sorted(shares[200:], reverse=True)


@pytest.mark.slow
def test_a_stopped_run_goes_on_as_if_it_had_not(
    vocabulary: Vocabulary, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.batches.ITEMS_PER_STEP", 4)
    monkeypatch.setattr("training.train.CHECKPOINT_SECONDS", 0.0)
    whole, first, second = (fresh(vocabulary) for _ in range(3))
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    fit(
        whole,
        tokenizer,
        Run(seed=1, stages=(3, 1, 1), num_threads=2, folder=tmp_path / "whole"),
    )
    parts = Run(seed=1, stages=(3, 1, 1), num_threads=1, folder=tmp_path / "parts")

    class Stopped(Exception):
        pass

    def stop_after_two(step: int, steps: int) -> float:
        if step == 2:
            raise Stopped
        return rate_at(step, steps)

    monkeypatch.setattr("training.train.rate_at", stop_after_two)
    with pytest.raises(Stopped):
        fit(first, tokenizer, parts)
    monkeypatch.setattr("training.train.rate_at", rate_at)
    fit(second, tokenizer, parts)
    for one, two in zip(whole.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, two)
