"""The built-in model against its goldens: transformers' answers in fp32 (training/goldens.py).

Every shipped form gives the same greedy answers on every backend and in every load mode, but for
near-ties: places where fp32's margin between the two choices is within the error that the engine
makes there anyway.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

import culet
from culet.formats.packed import LoadMode
from culet.llm.conversion import Conversion
from culet.llm.facade import LLM
from culet.llm.packing import pack_model
from culet.ops.interface import Precision
from culet.ops.select import BackendName
from support.builtin_model import FOLDER, MODEL_PATH, Q4_K_PATH, goldens, needs_builtin

pytestmark = needs_builtin
FORMS = {"folder": FOLDER, "q8_0": MODEL_PATH, "q4_k": Q4_K_PATH}
PACKED = ("packed folder", "packed q8_0", "packed q4_k")
DIGEST_STRIDE = 256
ENGINES: dict[str, tuple[BackendName, Precision]] = {
    "reference": ("reference", "exact"),
    "cpu": ("cpu", "fast"),
    "cpu exact": ("cpu", "exact"),
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """All forms, the packed ones made on the spot."""
    folder = tmp_path_factory.mktemp("packed")
    found = dict(FORMS)
    for form, path in FORMS.items():
        found[f"packed {form}"] = folder / f"{form}.culet"
        pack_model(path, folder / f"{form}.culet", 1, Conversion())
    return found


@pytest.fixture(
    scope="module",
    params=[(form, engine) for form in (*FORMS, *PACKED) for engine in ENGINES],
    ids=" on ".join,
)
def served(
    request: pytest.FixtureRequest, paths: dict[str, Path]
) -> Iterator[tuple[str, str, LLM]]:
    form, engine = request.param
    backend, precision = ENGINES[engine]
    with culet.load(
        paths[form], backend=backend, precision=precision, context_length=1024, kv_type="f32"
    ) as llm:
        yield form, engine, llm


def test_answers_differ_only_at_near_ties(served: tuple[str, str, LLM]) -> None:
    form, engine, llm = served
    num_different = 0
    for golden in goldens():
        answer = golden["answer_ids"]
        logits = answer_logits(llm, golden)
        different = [i for i, row in enumerate(logits) if int(row.argmax()) != answer[i]]
        num_different += bool(different)
        for place in different:
            assert_near_tie(logits[place], golden, place)
        if "folder" in form and engine != "cpu":
            # Weights and activations are fp32's own: only the order of sums differs.
            assert not different
            # Logits pass 30 * tanh(x / 30), so their error is at most that of x: sums of up to 512
            # products, in ten layers; the goldens' four digits add 5e-5.
            digest = logits[0, ::DIGEST_STRIDE]
            np.testing.assert_allclose(digest, golden["logits"], rtol=0, atol=2e-3)
    if "q4_k" not in form:  # about 4.5 bits a weight are few for a model this small
        assert num_different <= 2


def answer_logits(llm: LLM, golden: dict[str, Any]) -> np.ndarray:
    """float32 [answer tokens, vocab]: what each token of the golden answer is chosen from."""
    prompt, answer = golden["prompt_ids"], golden["answer_ids"]
    return llm.logits([*prompt, *answer[:-1]])[len(prompt) - 1 :]


def assert_near_tie(logits: np.ndarray, golden: dict[str, Any], place: int) -> None:
    """fp32's margin between its choice and the engine's is at most the engine's error here."""
    best = dict(zip(golden["best_ids"][place], golden["best_logits"][place], strict=True))
    chosen = int(logits.argmax())
    where = f"{golden['prompt']!r} at {place}"
    assert chosen in best, f"{where}: fp32 gives {chosen} no chance"
    error = max(abs(float(logits[i]) - value) for i, value in best.items())
    margin = golden["best_logits"][place][0] - best[chosen]
    assert margin <= error, f"{where}: margin {margin}, error {error}"


@pytest.mark.parametrize("form", FORMS)
def test_tokenizer_agrees(form: str) -> None:
    with culet.load(FORMS[form], backend="cpu", context_length=64) as llm:
        for golden in goldens():
            ids = llm.tokenizer.encode(golden["prompt"], add_bos=False, parse_special=True)
            assert ids == golden["prompt_ids"]
            answer = llm.tokenizer.decode(golden["answer_ids"], skip_special=False)
            assert answer == golden["answer"]


@pytest.mark.parametrize("form", [*FORMS, *PACKED])
def test_load_mode_changes_nothing(form: str, paths: dict[str, Path]) -> None:
    """Generation in a batch, from files mapped, read and locked: the same answers, the goldens."""
    texts = [golden["prompt"].removeprefix("<bos>") for golden in goldens()]
    answers = []
    for mode in get_args(LoadMode):
        with culet.load(paths[form], load_mode=mode, context_length=1024) as llm:
            given = llm.generate(texts, parse_special=True, temperature=0, max_tokens=200)
            answers.append([completion.token_ids for completion in given])
    assert all(given == answers[0] for given in answers)
    same = [
        list(ids) in (golden["answer_ids"], golden["answer_ids"][:-1])
        for ids, golden in zip(answers[0], goldens(), strict=True)
    ]
    # One other turn at a near-tie changes the rest of an answer; each turn is judged above.
    if "q4_k" not in form:
        assert sum(same) >= len(same) - 2
