"""How far the logits of two engines are apart, and what that means for greedy text. Pure numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Float32Array = NDArray[np.float32]
Verdict = Literal["same", "near-tie", "different"]


@dataclass(frozen=True, slots=True)
class RowDifference:
    """A place where two engines' most probable tokens differ, in the same context.

    Attributes:
        position: index among the answer's tokens.
        ours, theirs: the two candidates.
        our_margin, their_margin, exact_margin: logit of `ours` less that of `theirs`, in our
            engine's, their engine's and the exact logits.
        our_error, their_error: the largest error of a logit of that row against the exact ones.
        exact_choice: the most probable token by the exact logits.
    """

    position: int
    ours: int
    theirs: int
    our_margin: float
    their_margin: float
    exact_margin: float
    our_error: float
    their_error: float
    exact_choice: int

    @property
    def verdict(self) -> Verdict:
        """`near-tie`: fp32 picks one of the two, and its margin between them is at most the larger
        of the two engines' largest logit errors on that row. Anything else is `different`."""
        is_tie = self.exact_choice in (self.ours, self.theirs) and abs(self.exact_margin) <= max(
            self.our_error, self.their_error
        )
        return "near-tie" if is_tie else "different"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows of one text, compared.

    Attributes:
        num_rows: tokens of the answer.
        differences: at every row where the choices differ; the first is where greedy texts part.
        kl: KL divergence in nats of their probabilities from ours, by row.
        our_kl, their_kl: of ours and of theirs from the exact ones.
    """

    num_rows: int
    differences: tuple[RowDifference, ...]
    kl: NDArray[np.float64]
    our_kl: NDArray[np.float64]
    their_kl: NDArray[np.float64]

    @property
    def verdict(self) -> Verdict:
        """The worst of the differences'."""
        verdicts = {d.verdict for d in self.differences}
        return "different" if "different" in verdicts else "near-tie" if verdicts else "same"


def compare_rows(ours: Float32Array, theirs: Float32Array, exact: Float32Array) -> Comparison:
    """Compare logits [rows, vocab] that three engines give in the same contexts.

    Args:
        exact: of the reference's weights with fp32 activations.
    """
    our_choice, their_choice = ours.argmax(axis=1), theirs.argmax(axis=1)
    exact_choice = exact.argmax(axis=1)
    differences = []
    for row in np.flatnonzero(our_choice != their_choice):
        a, b = int(our_choice[row]), int(their_choice[row])
        differences.append(
            RowDifference(
                position=int(row),
                ours=a,
                theirs=b,
                our_margin=float(ours[row, a] - ours[row, b]),
                their_margin=float(theirs[row, a] - theirs[row, b]),
                exact_margin=float(exact[row, a] - exact[row, b]),
                our_error=float(np.abs(ours[row] - exact[row]).max()),
                their_error=float(np.abs(theirs[row] - exact[row]).max()),
                exact_choice=int(exact_choice[row]),
            )
        )
    return Comparison(
        num_rows=len(ours),
        differences=tuple(differences),
        kl=kl_divergence(theirs, ours),
        our_kl=kl_divergence(exact, ours),
        their_kl=kl_divergence(exact, theirs),
    )


def kl_divergence(reference: Float32Array, other: Float32Array) -> NDArray[np.float64]:
    """KL(reference || other) in nats of each row of logits [rows, vocab]."""
    result = np.empty(len(reference))
    for row in range(len(reference)):  # a float64 copy of one row at a time
        p, q = log_softmax(reference[row]), log_softmax(other[row])
        result[row] = max(0.0, float((np.exp(p) * (p - q)).sum()))
    return result


def log_softmax(logits: Float32Array) -> NDArray[np.float64]:
    """Log-probabilities of one row, in float64."""
    z = logits.astype(np.float64)
    z -= z.max()
    return np.asarray(z - np.log(np.exp(z).sum()), dtype=np.float64)
