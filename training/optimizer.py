"""Muon for matrices, Adam for tables and gains, with one schedule for both.

Muon replaces the momentum of a matrix by the nearest orthogonal one (Newton-Schulz iterations,
Jordan et al. 2024), which needs fewer tokens than Adam alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor

import torch
from torch import Tensor

# Quintic iteration whose singular values come close to 1 in few steps; not to 1 exactly.
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_MOMENTUM = 0.95
_BETAS = (0.9, 0.98)
_EPS = 1e-10


class Optimizer:
    """State and update of all parameters.

    Attributes:
        state: momenta by parameter name; saved with a checkpoint.
    """

    def __init__(self, parameters: Mapping[str, Tensor], executor: Executor) -> None:
        self.parameters = dict(parameters)
        self.executor = executor
        self.by_shape: defaultdict[tuple[int, ...], list[str]] = defaultdict(list)
        self.state: dict[str, Tensor] = {}
        for name, value in parameters.items():
            if value.ndim == 2 and "embed_tokens" not in name:
                self.by_shape[tuple(value.shape)].append(name)
                self.state[name] = torch.zeros_like(value)
            else:
                self.state[f"{name}/mean"] = torch.zeros_like(value)
                self.state[f"{name}/square"] = torch.zeros_like(value)

    @torch.no_grad()
    def step(
        self, gradients: Mapping[str, Tensor], number: int, muon_rate: float, adam_rate: float
    ) -> None:
        """Update number `number` (from 0)."""
        jobs = [
            self.executor.submit(self._muon, names, gradients, muon_rate)
            for names in self.by_shape.values()
        ]
        matrices = {name for names in self.by_shape.values() for name in names}
        self._adam((n for n in self.parameters if n not in matrices), gradients, number, adam_rate)
        for job in jobs:
            job.result()

    @torch.no_grad()
    def _muon(self, names: list[str], gradients: Mapping[str, Tensor], rate: float) -> None:
        """All matrices of one shape at once."""
        updates = []
        for name in names:
            momentum = self.state[name]
            momentum.lerp_(gradients[name], 1 - _MOMENTUM)
            updates.append(gradients[name].lerp(momentum, _MOMENTUM))  # Nesterov
        rows, columns = updates[0].shape
        scale = rate * max(1.0, rows / columns) ** 0.5
        for name, update in zip(names, orthogonal(torch.stack(updates)), strict=True):
            self.parameters[name].sub_(update, alpha=scale)

    @torch.no_grad()
    def _adam(
        self, names: Iterable[str], gradients: Mapping[str, Tensor], number: int, rate: float
    ) -> None:
        bias1, bias2 = (1 - beta ** (number + 1) for beta in _BETAS)
        for name in names:
            gradient = gradients[name]
            mean, square = self.state[f"{name}/mean"], self.state[f"{name}/square"]
            mean.lerp_(gradient, 1 - _BETAS[0])
            square.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
            spread = (square / bias2).sqrt_().add_(_EPS)
            self.parameters[name].addcdiv_(mean, spread, value=-rate / bias1)


def orthogonal(x: Tensor) -> Tensor:
    """[n, rows, columns] -> nearly orthogonal matrices with the same singular vectors."""
    a, b, c = _NEWTON_SCHULZ
    tall = x.shape[1] > x.shape[2]
    x = x.transpose(1, 2) if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(_ITERATIONS):
        square = x @ x.transpose(1, 2)
        x = a * x + (b * square + c * square @ square) @ x
    return x.transpose(1, 2) if tall else x


def rate_at(step: int, steps: int) -> float:
    """Share of the peak rate: a short warm-up, a plateau, linearly down over the last 55%."""
    warmup = 20
    return min(1.0, (step + 1) / warmup, (steps - step) / (0.55 * steps))
