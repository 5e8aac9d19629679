"""The commands of scripts/train_builtin.py, each from files in the run's folder to files in it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer
from transformers import Gemma4ForCausalLM

from training import tokenizer as vocabulary
from training.corpus import training_item
from training.dialogue import render
from training.document import print_report, write_document
from training.evaluate import evaluate, read_report, write_report
from training.export import load_folder, write_folder, write_quantised
from training.forms import compare_forms
from training.goldens import write_goldens
from training.model import make_config, make_model
from training.train import Run, fit, load_weights

STAGES = (3000, 900, 350)  # steps
ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "models" / "builtin"
PACKAGED = ROOT / "src" / "culet" / "builtin" / "builtin-q8_0.gguf"
GOLDENS = ROOT / "tests" / "builtin" / "goldens.json"
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
    fit(
        model,
        tokenizer,
        Run(arguments.seed, arguments.stages, arguments.threads, arguments.out),
    )


def _shipped_model(arguments: argparse.Namespace) -> tuple[Gemma4ForCausalLM, Tokenizer]:
    """The trained model with its weights rounded to bf16, as they are shipped, in fp32."""
    tokenizer = _tokenizer(arguments.out)
    config = make_config(vocabulary.vocabulary_of(arguments.out / "tokenizer.json"))
    model = make_model(config, arguments.seed)
    load_weights(arguments.out / "checkpoint.safetensors", dict(model.named_parameters()))
    for parameter in model.parameters():  # not the buffers: RoPE frequencies are no weights
        parameter.data = parameter.data.bfloat16().float()
    model.train(False)
    return model, tokenizer


def _evaluate(arguments: argparse.Namespace) -> None:
    report = evaluate(*_shipped_model(arguments))
    write_report(report, arguments.out / "evaluation.json")
    print_report(report)


def _export(arguments: argparse.Namespace) -> None:
    """All shipped files, if the evaluation passed."""
    report = read_report(arguments.out / "evaluation.json")
    if not report.passes:
        raise SystemExit("the evaluation does not pass, so nothing is exported")
    model, _ = _shipped_model(arguments)
    words = vocabulary.vocabulary_of(arguments.out / "tokenizer.json")
    write_folder(model, words, FOLDER)
    write_quantised(model, words, FOLDER / "builtin-q4_k.gguf", "Q4_K")
    write_quantised(model, words, PACKAGED, "Q8_0")
    write_goldens(*load_folder(FOLDER), GOLDENS)
    files = {"bf16": FOLDER, "Q8_0": PACKAGED, "Q4_K": FOLDER / "builtin-q4_k.gguf"}
    forms = compare_forms(files, GOLDENS)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    document = ROOT / "docs" / "builtin-model.md"
    write_document(
        report, forms, arguments.out / "log.jsonl", arguments.stages, num_parameters, document
    )


COMMANDS = {"train": _train, "evaluate": _evaluate, "export": _export}
