"""Which files of a repository a name means."""

from __future__ import annotations

import pytest

from culet.errors import UsageError
from culet.hub.choice import Reference, choose_files, is_companion, parse_reference, quant_of

GGUF_REPO = [
    ".gitattributes",
    "README.md",
    "BF16/gemma-4-E2B-it-BF16-00001-of-00002.gguf",
    "BF16/gemma-4-E2B-it-BF16-00002-of-00002.gguf",
    "gemma-4-E2B-it-Q4_0.gguf",
    "gemma-4-E2B-it-Q4_K_M.gguf",
    "gemma-4-E2B-it-Q8_0.gguf",
    "gemma-4-E2B-it-UD-Q4_K_M.gguf",
    "gemma-4-E2B-it-UD-Q2_K_XL.gguf",
    "gemma-4-E2B-it-assistant-Q8_0.gguf",
    "imatrix.gguf",
    "mmproj-BF16.gguf",
    "mmproj-F16.gguf",
]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("google/gemma-4-E2B-it", Reference("google/gemma-4-E2B-it")),
        ("a/b:Q4_K_M", Reference("a/b", "Q4_K_M")),
        ("a/b:dir/file-1.gguf", Reference("a/b", "dir/file-1.gguf")),
        ("a", None),
        ("a/b/c", None),
        ("./a/b", None),
        ("../a", None),
        ("a/..", None),
        ("a/b:", None),
        ("a/b:../x", None),
        ("a/b c", None),
    ],
)
def test_names(name: str, expected: Reference | None) -> None:
    assert parse_reference(name) == expected


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("Q4_K_M", ["gemma-4-E2B-it-Q4_K_M.gguf"]),
        ("q4_k_m", ["gemma-4-E2B-it-Q4_K_M.gguf"]),
        ("UD-Q4_K_M", ["gemma-4-E2B-it-UD-Q4_K_M.gguf"]),
        ("Q2_K_XL", ["gemma-4-E2B-it-UD-Q2_K_XL.gguf"]),  # there is no other
        ("Q8_0", ["gemma-4-E2B-it-Q8_0.gguf"]),  # not the draft model of that quantisation
        (
            "BF16",  # not the projector of that type
            [
                "BF16/gemma-4-E2B-it-BF16-00001-of-00002.gguf",
                "BF16/gemma-4-E2B-it-BF16-00002-of-00002.gguf",
            ],
        ),
        (
            "BF16/gemma-4-E2B-it-BF16-00002-of-00002.gguf",
            [
                "BF16/gemma-4-E2B-it-BF16-00001-of-00002.gguf",
                "BF16/gemma-4-E2B-it-BF16-00002-of-00002.gguf",
            ],
        ),
        ("mmproj-F16.gguf", ["mmproj-F16.gguf"]),  # asked for by its name
        (None, ["gemma-4-E2B-it-Q4_K_M.gguf"]),
    ],
)
def test_choice_in_a_gguf_repository(selector: str | None, expected: list[str]) -> None:
    assert choose_files(Reference("a/b", selector), GGUF_REPO) == expected


def test_what_is_not_there_is_answered_with_what_is() -> None:
    with pytest.raises(UsageError, match="nothing fits 'Q3_K'.*BF16, Q4_0, Q4_K_M, Q8_0, UD-Q2"):
        choose_files(Reference("a/b", "Q3_K"), GGUF_REPO)


def test_several_that_fit_are_named() -> None:
    names = ["x-Q4_0.gguf", "y-Q4_0.gguf"]
    with pytest.raises(UsageError, match=r"2 files fit \(x-Q4_0.gguf, y-Q4_0.gguf\)"):
        choose_files(Reference("a/b", "Q4_0"), names)
    with pytest.raises(UsageError, match="holds several models.*as in a/b:Q4_0"):
        choose_files(Reference("a/b"), names)


def test_a_split_model_with_a_hole() -> None:
    names = ["x-00001-of-00003.gguf", "x-00003-of-00003.gguf"]
    with pytest.raises(UsageError, match="lacks x-00002-of-00003.gguf"):
        choose_files(Reference("a/b"), names)


def test_a_safetensors_repository() -> None:
    names = [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "adapter_model.safetensors",
        "original/consolidated.safetensors",
        "x-Q4_0.gguf",
    ]
    assert choose_files(Reference("a/b"), names) == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "config.json",
    ]
    assert choose_files(Reference("a/b", "Q4_0"), names) == ["x-Q4_0.gguf"]


def test_no_model_at_all() -> None:
    with pytest.raises(UsageError, match="holds no GGUF or safetensors model"):
        choose_files(Reference("a/b"), ["README.md", "mmproj.gguf", "config.json"])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a/mmproj-model-f16.gguf", True),
        ("model.mmproj-Q8_0.gguf", True),
        ("gemma-4-E2B-it-assistant.gguf", True),
        ("mtp-gemma-4.gguf", True),
        ("imatrix_unsloth.gguf", True),
        ("gemma-4-assistants-finetune.gguf", False),
    ],
)
def test_companions(name: str, expected: bool) -> None:
    assert is_companion(name) is expected


def test_quant_names() -> None:
    assert quant_of("x/gemma-3-270m-it-q4_k_m.gguf") == "q4_k_m"
    assert quant_of("gemma-4-UD-IQ2_XXS-00001-of-00002.gguf") == "UD-IQ2_XXS"
    assert quant_of("gemma-4-E2B.gguf") == "gemma-4-E2B"
