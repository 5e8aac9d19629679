"""Culet beside Hugging Face transformers: bf16 on the CPU, the same random weights, in one run.

    python bench/vs_transformers.py [--layers 10] [--scratch FOLDER] [--rounds 3]

Makes a folder of E2B's widths with fewer layers (half of them share K/V), then measures prefill and
decode of both, alternating. Prints the median ratios and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from transformers import Gemma4ForCausalLM, Gemma4TextConfig
from transformers.cache_utils import DynamicCache

from culet.engine.config import EngineConfig
from culet.engine.measure import Measurement
from culet.formats.opening import open_checkpoint
from culet.llm.loading import load_model
from culet.models.registry import read_config
from culet.ops.select import load_ops

NUM_PROMPT, NUM_STEPS = 256, 16


def make_folder(folder: Path, num_layers: int) -> Gemma4ForCausalLM:
    """A random model of E2B's widths in bf16, saved to `folder`."""
    config = Gemma4TextConfig(
        hidden_size=1536,
        intermediate_size=6144,
        num_hidden_layers=num_layers,
        layer_types=[
            "full_attention" if i % 5 == 4 else "sliding_attention" for i in range(num_layers)
        ],
        num_attention_heads=8,
        num_key_value_heads=1,
        num_kv_shared_layers=num_layers // 2,
        use_double_wide_mlp=True,
        final_logit_softcapping=30.0,
    )
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    model = Gemma4ForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder)
    return model


@torch.inference_mode()
def transformers_seconds(model: Gemma4ForCausalLM) -> tuple[float, float]:
    """Seconds of a prefill to its last logits, and of a decode step."""
    ids = torch.randint(0, model.config.vocab_size, (1, NUM_PROMPT))
    cache = DynamicCache(config=model.config)
    start = time.perf_counter()
    logits = model(ids, past_key_values=cache, logits_to_keep=1).logits
    prefill = time.perf_counter() - start
    start = time.perf_counter()
    for _ in range(NUM_STEPS):
        ids = logits[:, -1:].argmax(-1)
        logits = model(ids, past_key_values=cache).logits
    return prefill, (time.perf_counter() - start) / NUM_STEPS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--scratch", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory(dir=args.scratch) as name:
        theirs = make_folder(Path(name), args.layers)
        checkpoint = open_checkpoint(Path(name))
        config = read_config(checkpoint)
        ops = load_ops("cpu", threads=args.threads)
        model = load_model(config, checkpoint, ops, "disk").model
        ours = Measurement(model, ops, EngineConfig(context_length=NUM_PROMPT + NUM_STEPS + 8))
        ratios: dict[str, list[float]] = {"prefill": [], "decode": []}
        for index in range(args.rounds + 1):
            prefill, step = transformers_seconds(theirs)
            our_prefill = ours.prefill(NUM_PROMPT)
            our_step = median(ours.decode(NUM_STEPS, 1, NUM_PROMPT))
            if index == 0:
                continue  # a warm-up of both
            ratios["prefill"].append(prefill / our_prefill)
            ratios["decode"].append(step / our_step)
            print(
                f"prefill {NUM_PROMPT}: theirs {prefill:.3f} s, ours {our_prefill:.3f} s   "
                f"decode: theirs {step * 1e3:.1f} ms, ours {our_step * 1e3:.1f} ms",
                flush=True,
            )
    medians = {what: median(values) for what, values in ratios.items()}
    print(f"times faster: prefill {medians['prefill']:.2f}, decode {medians['decode']:.2f}")
    print(json.dumps({"what": "culet / transformers", "layers": args.layers, "ratio": medians}))


if __name__ == "__main__":
    main()
