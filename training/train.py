"""The training loop: steps, checkpoints, progress.

A step depends only on the seed and the step's number, and gradients are summed in a fixed order: a
run that was stopped goes on as if it had not been, and two runs on one machine give the same
weights.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import Gemma4ForCausalLM

from training.batches import step_batches
from training.corpus.split import Split
from training.forward import Batch, loss_sum
from training.optimizer import Optimizer, rate_at

MUON_RATE = 0.02
ADAM_RATE = 0.004
# What each stage reads, and its share of both rates at its peak.
STAGES: tuple[tuple[Split, float], ...] = (("train", 1.0), ("wide", 0.6), ("last", 0.4))
CHECKPOINT_SECONDS = 240.0
LOG_EVERY = 10


@dataclass(frozen=True, slots=True)
class Run:
    """What a run is: with the code, it determines the weights.

    Attributes:
        stages: steps of each of `STAGES`.
        num_threads: batches computed side by side; each runs on one core.
    """

    seed: int
    stages: tuple[int, ...]
    num_threads: int
    folder: Path

    @property
    def all_steps(self) -> int:
        return sum(self.stages)

    def stage_at(self, step: int) -> tuple[Split, float]:
        """The corpus of a step, and the share of the peak rates."""
        for (split, peak), steps in zip(STAGES, self.stages, strict=True):
            if step < steps:
                return split, peak * rate_at(step, steps)
            step -= steps
        raise ValueError(f"a run of {self.all_steps} steps has no step {step + self.all_steps}")


def fit(model: Gemma4ForCausalLM, tokenizer: Tokenizer, run: Run) -> None:
    """Trains from the last checkpoint in the run's folder, or from the start, to the end."""
    # One thread per batch, and batches side by side: on a busy machine, operations that are split
    # over threads wait for the slowest thread hundreds of times a step.
    torch.set_num_threads(1)
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    with ThreadPoolExecutor(run.num_threads) as executor:
        optimizer = Optimizer({n: p.data for n, p in parameters.items()}, executor)
        step = _restore(run.folder, parameters, optimizer)
        saved_at = time.monotonic()
        with _progress() as progress:
            task = progress.add_task("training", total=run.all_steps, completed=step, note="")
            log = _Log(run.folder / "log.jsonl")
            while step < run.all_steps:
                loss, num_tokens = _step(model, tokenizer, run, optimizer, step, executor)
                step += 1
                log.add(step, loss, num_tokens)
                progress.update(task, completed=step, note=log.note)
                if step == run.all_steps or time.monotonic() - saved_at > CHECKPOINT_SECONDS:
                    _save(run.folder, parameters, optimizer, step)
                    saved_at = time.monotonic()


def _step(
    model: Gemma4ForCausalLM, tokenizer: Tokenizer, run: Run, optimizer: Optimizer, step: int,
    executor: Executor,
) -> tuple[float, int]:  # fmt: skip
    """One update; mean loss of a trained token, and tokens read."""
    split, share = run.stage_at(step)
    batches = list(step_batches(tokenizer, run.seed, step, split))
    num_targets = sum(len(batch.target) for batch in batches)
    names = [name for name, _ in model.named_parameters()]
    gradient_of = _gradients(model, num_targets)
    loss = 0.0
    total: list[Tensor] = []
    # Long batches first, so that none is left to run alone at the end.
    for batch_loss, gradients in executor.map(gradient_of, reversed(batches)):
        loss += batch_loss
        if total:
            torch._foreach_add_(total, gradients)
        else:
            total = gradients
    gradients_by_name = dict(zip(names, total, strict=True))
    optimizer.step(gradients_by_name, step, MUON_RATE * share, ADAM_RATE * share)
    return loss, sum(len(batch.ids) for batch in batches)


def _gradients(
    model: Gemma4ForCausalLM, num_targets: int
) -> Callable[[Batch], tuple[float, list[Tensor]]]:
    def gradient_of(batch: Batch) -> tuple[float, list[Tensor]]:
        loss = loss_sum(model, batch) / num_targets
        gradients = list(torch.autograd.grad(loss, list(model.parameters())))
        return loss.item(), gradients

    return gradient_of


class _Log:
    """Mean loss and speed over the last few steps, to a file and to the progress bar."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.note = ""
        self._clear()

    def _clear(self) -> None:
        self.losses: list[float] = []
        self.num_tokens = 0
        self.started = time.monotonic()
        self.cpu_started = time.process_time()

    def add(self, step: int, loss: float, num_tokens: int) -> None:
        self.losses.append(loss)
        self.num_tokens += num_tokens
        if step % LOG_EVERY:
            return
        seconds = time.monotonic() - self.started
        row = {
            "step": step,
            "loss": round(sum(self.losses) / len(self.losses), 5),
            "num_tokens": self.num_tokens,
            "tokens_per_s": round(self.num_tokens / seconds),
            "tokens_per_cpu_s": round(self.num_tokens / (time.process_time() - self.cpu_started)),
        }
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        self.note = f"loss {row['loss']:.4f}, {row['tokens_per_s']} tokens/s"
        self._clear()


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )


def _save(folder: Path, parameters: dict[str, Tensor], optimizer: Optimizer, step: int) -> None:
    """Writes a checkpoint under another name first, so that a stop never leaves half of one."""
    tensors = {f"model/{name}": value.detach() for name, value in parameters.items()}
    tensors |= {f"optimizer/{name}": value for name, value in optimizer.state.items()}
    partial = folder / "checkpoint.part"
    save_file(tensors, partial, metadata={"step": str(step)})
    os.replace(partial, folder / "checkpoint.safetensors")


def _restore(folder: Path, parameters: dict[str, Tensor], optimizer: Optimizer) -> int:
    """The step to go on from; 0 without a checkpoint."""
    path = folder / "checkpoint.safetensors"
    if not path.exists():
        return 0
    step = load_weights(path, parameters)
    tensors = load_file(path)
    for name in optimizer.state:
        optimizer.state[name].copy_(tensors[f"optimizer/{name}"])
    return step


@torch.no_grad()
def load_weights(path: Path, parameters: dict[str, Tensor]) -> int:
    """Copies a checkpoint's weights into parameters; the step it was written after."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        for name, value in parameters.items():
            value.copy_(file.get_tensor(f"model/{name}"))
        return int(file.metadata()["step"])
