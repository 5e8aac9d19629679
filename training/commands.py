"""The commands of scripts/train_builtin.py, each from files in the run's folder to files in it."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from tokenizers import Tokenizer
from transformers import Gemma4ForCausalLM

from training import tokenizer as vocabulary
from training.corpus import training_item
from training.dialogue import render
from training.document import print_report
from training.evaluate import evaluate
from training.model import make_config, make_model
from training.train import Run, fit, load_weights

STEPS = 1300
# Items that the vocabulary is learned from, of a seed of its own.
_VOCABULARY_SEED, _VOCABULARY_ITEMS = 7, 20_000


def run(arguments: argparse.Namespace) -> int:
    arguments.out.mkdir(parents=True, exist_ok=True)
    COMMANDS[arguments.command](arguments)
    return 0


def _tokenizer(folder: Path) -> Tokenizer:
    """The run's tokenizer, learned first if it is not there."""
    path = folder / "tokenizer.json"
    if not path.exists():
        vocabulary.build(vocabulary.train(_texts())).save(str(path))
    return Tokenizer.from_file(str(path))


def _texts() -> Iterator[str]:
    """The corpus without special tokens, which are no text to learn merges from."""
    special = (*vocabulary.CONTROL, *vocabulary.USER_DEFINED)
    split = re.compile("|".join(map(re.escape, special)))
    for number in range(_VOCABULARY_ITEMS):
        yield from split.split(render(training_item(_VOCABULARY_SEED, number)).text)


def _train(arguments: argparse.Namespace) -> None:
    tokenizer = _tokenizer(arguments.out)
    config = make_config(vocabulary.vocabulary_of(arguments.out / "tokenizer.json"))
    model = make_model(config, arguments.seed)
    fit(model, tokenizer, Run(arguments.seed, arguments.steps, arguments.threads, arguments.out))


def _shipped_model(arguments: argparse.Namespace) -> tuple[Gemma4ForCausalLM, Tokenizer]:
    """The trained model with its weights rounded to bf16, as they are shipped, in fp32."""
    tokenizer = _tokenizer(arguments.out)
    config = make_config(vocabulary.vocabulary_of(arguments.out / "tokenizer.json"))
    model = make_model(config, arguments.seed)
    load_weights(arguments.out / "checkpoint.safetensors", dict(model.named_parameters()))
    for parameter in model.parameters():  # not the buffers: RoPE frequencies are no weights
        parameter.data = parameter.data.bfloat16().float()
    return model.eval(), tokenizer


def _evaluate(arguments: argparse.Namespace) -> None:
    report = evaluate(*_shipped_model(arguments))
    misses = [asdict(miss) for miss in report.misses]
    result = {"scores": report.scores, "named": report.named, "misses": misses}
    text = json.dumps(result, indent=1, ensure_ascii=False)
    (arguments.out / "evaluation.json").write_text(text, encoding="utf-8")
    print_report(report)


COMMANDS = {"train": _train, "evaluate": _evaluate}
