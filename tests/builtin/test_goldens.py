"""The built-in model against its goldens: transformers' answers in fp32 (training/goldens.py).

Every shipped form and every backend gives the same greedy answers, but for near-ties: places where
fp32's margin between the two choices is within the error that the engine makes there anyway.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import culet
from culet.builtin import MODEL_PATH
from culet.errors import BackendError
from culet.llm.facade import LLM, LoadMode
from culet.ops.select import BackendName, load_ops

FOLDER = Path(__file__).parents[2] / "models" / "builtin"
FORMS = {"folder": FOLDER, "q8_0": MODEL_PATH, "q4_k": FOLDER / "builtin-q4_k.gguf"}
GOLDENS_PATH = Path(__file__).with_name("goldens.json")
if not (MODEL_PATH.exists() and GOLDENS_PATH.exists()):
    pytest.skip("this build ships no built-in model", allow_module_level=True)
GOLDENS: list[dict[str, Any]] = json.loads(GOLDENS_PATH.read_text(encoding="utf-8"))
DIGEST_STRIDE = 256
BACKENDS: tuple[BackendName, ...] = ("reference", "cpu")
MODES: tuple[LoadMode, ...] = ("mmap", "none")


@pytest.fixture(scope="module", params=[(f, b) for f in FORMS for b in BACKENDS], ids="-".join)
def served(request: pytest.FixtureRequest) -> Iterator[tuple[str, str, LLM]]:
    form, backend = request.param
    try:
        load_ops(backend)
    except BackendError as error:
        pytest.skip(str(error))
    with culet.load(FORMS[form], backend=backend, context_length=1024, kv_type="f32") as llm:
        yield form, backend, llm


def test_tokenizer_agrees(served: tuple[str, str, LLM]) -> None:
    _, _, llm = served
    for golden in GOLDENS:
        ids = llm.tokenizer.encode(golden["prompt"], add_bos=False, parse_special=True)
        assert ids == golden["prompt_ids"]
        assert llm.tokenizer.decode(golden["answer_ids"], skip_special=False) == golden["answer"]


def test_exact_form_has_the_logits(served: tuple[str, str, LLM]) -> None:
    form, backend, llm = served
    if (form, backend) != ("folder", "reference"):
        pytest.skip("only unquantised weights with fp32 activations have the same logits")
    for golden in GOLDENS:
        logits = llm.logits(golden["prompt_ids"])[-1]
        # fp32 sums of up to 512 terms in another order through ten layers; goldens have 4 digits.
        np.testing.assert_allclose(logits[::DIGEST_STRIDE], golden["logits"], rtol=0, atol=2e-3)


def test_answers_differ_only_at_near_ties(served: tuple[str, str, LLM]) -> None:
    form, _, llm = served
    num_different = 0
    for golden in GOLDENS:
        prompt, answer = golden["prompt_ids"], golden["answer_ids"]
        logits = llm.logits([*prompt, *answer[:-1]])[len(prompt) - 1 :]
        different = [i for i, row in enumerate(logits) if int(row.argmax()) != answer[i]]
        num_different += bool(different)
        for place in different:
            assert_near_tie(logits[place], golden, place)
    if form != "q4_k":  # about 4.5 bits a weight are few for a model this small
        assert num_different <= 2


def assert_near_tie(logits: np.ndarray, golden: dict[str, Any], place: int) -> None:
    """fp32's margin between its choice and the engine's is at most the engine's error here."""
    best = dict(zip(golden["best_ids"][place], golden["best_logits"][place], strict=True))
    chosen = int(logits.argmax())
    where = f"{golden['prompt']!r} at {place}"
    assert chosen in best, f"{where}: fp32 gives {chosen} no chance"
    error = max(abs(float(logits[i]) - value) for i, value in best.items())
    margin = golden["best_logits"][place][0] - best[chosen]
    assert margin <= error, f"{where}: margin {margin}, error {error}"


@pytest.mark.parametrize("mode", MODES)
def test_generation_gives_the_answers(mode: LoadMode) -> None:
    with culet.load(MODEL_PATH, load_mode=mode, context_length=1024) as llm:
        prompts = [golden["prompt"].removeprefix("<bos>") for golden in GOLDENS]
        completions = [
            llm.generate(text, parse_special=True, temperature=0, max_tokens=200)
            for text in prompts
        ]
    same = [
        list(completion.token_ids) in (golden["answer_ids"], golden["answer_ids"][:-1])
        for completion, golden in zip(completions, GOLDENS, strict=True)
    ]
    # One wrong turn at a near-tie changes the rest of an answer; the test above judges each turn.
    assert sum(same) >= 38
