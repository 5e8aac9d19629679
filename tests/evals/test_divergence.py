"""Verdicts by the definition: a near-tie is a margin within the engines' own errors."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from culet.evals.divergence import Verdict, compare_rows, kl_divergence


def rows(*values: list[float]) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


@pytest.mark.parametrize(
    ("ours", "theirs", "exact", "expected"),
    [
        ([2.0, 1.0, 0.0], [2.0, 1.1, 0.0], [2.0, 1.05, 0.0], "same"),
        # fp32 is for ours by 0.1, and theirs is 0.2 off: a tie that rounding decides.
        ([2.1, 2.0, 0.0], [2.0, 2.2, 0.0], [2.1, 2.0, 0.0], "near-tie"),
        # fp32 is for theirs; only our own error is large enough.
        ([2.3, 2.0, 0.0], [1.9, 2.1, 0.0], [1.9, 2.1, 0.0], "near-tie"),
        # The margin of 0.5 is above both errors; so one of them would have to be wrong.
        ([2.5, 2.0, 0.0], [2.25, 2.3, 0.0], [2.5, 2.0, 0.0], "different"),
        # fp32 picks a third token.
        ([2.1, 2.0, 2.0], [2.0, 2.1, 2.0], [2.0, 2.0, 2.2], "different"),
    ],
)
def test_verdicts(
    ours: list[float], theirs: list[float], exact: list[float], expected: Verdict
) -> None:
    assert compare_rows(rows(ours), rows(theirs), rows(exact)).verdict == expected


def test_the_worst_row_decides_and_the_first_is_named() -> None:
    tie = ([2.1, 2.0], [2.0, 2.2], [2.1, 2.0])
    apart = ([9.0, 0.0], [0.0, 9.0], [9.0, 0.0])
    same = ([1.0, 0.0],) * 3
    ours, theirs, exact = (rows(*part) for part in zip(same, tie, apart, strict=True))
    found = compare_rows(ours, theirs, exact)
    assert [d.position for d in found.differences] == [1, 2]
    # An error as large as the margin excuses it by the definition, however large both are.
    assert [d.verdict for d in found.differences] == ["near-tie", "near-tie"]
    assert found.differences[0].our_margin == pytest.approx(0.1, abs=1e-6)
    assert found.differences[0].their_margin == pytest.approx(-0.2, abs=1e-6)


def test_kl_divergence_against_its_definition() -> None:
    rng = np.random.default_rng(0)
    reference, other = rng.normal(size=(2, 5, 40)).astype(np.float32) * 3
    p = np.exp(reference.astype(np.float64))
    p /= p.sum(axis=1, keepdims=True)
    q = np.exp(other.astype(np.float64))
    q /= q.sum(axis=1, keepdims=True)
    expected = (p * np.log(p / q)).sum(axis=1)
    np.testing.assert_allclose(kl_divergence(reference, other), expected, rtol=1e-12)
    assert not kl_divergence(reference, reference).any()
