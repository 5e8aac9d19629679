"""What transformers answers in fp32: the goldens that every other form and backend must meet.

For 40 prompts: token ids, the greedy answer's ids, the four best tokens at each of its places with
their logits, and a digest of the logits after the prompt.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import Gemma4ForCausalLM

from training.corpus import CATEGORIES, evaluation_item
from training.dialogue import prompt
from training.evaluate import NAMED, Greedy, asked

NUM_PROMPTS = 40
# Each digest holds every so many-th logit.
DIGEST_STRIDE = 256
# Candidates kept at each place: enough to judge whether another choice was a near-tie.
NUM_BEST = 4


def write_goldens(model: Gemma4ForCausalLM, tokenizer: Tokenizer, path: Path) -> None:
    generate = Greedy(model, tokenizer)
    rows = [_row(model, generate, tokenizer, text) for text in prompts()]
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def prompts() -> list[str]:
    """The named questions, one held-out item of each category and of some a second, two stories."""
    texts = [asked(question) for question, _ in NAMED]
    texts += ["<bos>Once upon a time", "<bos>The capital of Italy is"]
    number = 0
    while len(texts) < NUM_PROMPTS:
        for category in CATEGORIES:
            texts.append(prompt(evaluation_item(category, 1000 + number)))
        number += 1
    return texts[:NUM_PROMPTS]


@torch.inference_mode()
def _row(
    model: Gemma4ForCausalLM, generate: Greedy, tokenizer: Tokenizer, text: str
) -> dict[str, Any]:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    (answer,) = generate.ids(torch.tensor([ids]))
    logits = model(input_ids=torch.tensor([ids + answer[:-1]])).logits[0, len(ids) - 1 :].float()
    best = logits.topk(NUM_BEST, dim=-1)
    assert best.indices[:, 0].tolist() == answer  # the cache of `generate` changes nothing
    return {
        "prompt": text,
        "prompt_ids": ids,
        "answer": tokenizer.decode(answer, skip_special_tokens=False),
        "answer_ids": answer,
        "best_ids": best.indices.tolist(),
        "best_logits": [[round(v, 4) for v in row] for row in best.values.tolist()],
        "logits": [round(v, 4) for v in logits[0, ::DIGEST_STRIDE].tolist()],
        "logit_rms": round(float(logits[0].square().mean().sqrt()), 4),
    }
