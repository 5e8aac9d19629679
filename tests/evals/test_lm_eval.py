"""lm-evaluation-harness against a live server: its accuracy is that of `culet eval choice`.

The harness brings many packages of its own, so it runs from an environment of its own, named by
CULET_LM_EVAL (a Python with `lm-eval[api]` and `transformers` installed; docs/evaluation.md).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import culet
from culet.cli.main import main
from support.http_requests import serve_llm

_PYTHON = os.environ.get("CULET_LM_EVAL")
_QUESTIONS = [
    ("the fox", [" and the dog", " jumps", " over"], 0),
    ("def f(x):", [" return x", " the", " lazy dog"], 1),
    ("El Niño", [" naïve", " café and", " x"], 2),
    ("one", [" two", " three four", " five"], 1),
]
_TASK = """
task: culet_choice
dataset_path: json
dataset_kwargs:
  data_files: {data}
test_split: train
output_type: multiple_choice
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "{{{{answer}}}}"
doc_to_choice: "{{{{choices}}}}"
target_delimiter: ""
metric_list:
  - metric: acc
  - metric: acc_norm
"""


def tokenizer_folder(folder: Path) -> Path:
    """The tiny model's tokenizer as transformers reads it."""
    from tokenizers.processors import TemplateProcessing

    from support.toy_vocabularies import GEMMA4_CONTROL, gemma4_oracle, gemma4_tables

    folder.mkdir()
    oracle = gemma4_oracle(*gemma4_tables(), GEMMA4_CONTROL)
    # As in Google's tokenizer.json: BOS in front where special tokens are asked for.
    oracle.post_processor = TemplateProcessing(
        single="<bos> $A", pair=None, special_tokens=[("<bos>", 2)]
    )
    oracle.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.slow
@pytest.mark.skipif(_PYTHON is None, reason="CULET_LM_EVAL names no Python with lm-eval")
def test_the_harness_finds_what_eval_choice_finds(
    model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from support.live_server import serving

    data = tmp_path / "questions.jsonl"
    lines = [{"prompt": p, "choices": c, "answer": a} for p, c, a in _QUESTIONS]
    data.write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "choice.yaml").write_text(_TASK.format(data=data))
    words = ["eval", "choice", str(model_path), "--data", str(data), "--json"]
    assert main(words) == 0
    expected = json.loads(capsys.readouterr().out.splitlines()[-1])

    with culet.load(model_path) as llm:
        with serving(serve_llm(llm)) as url:
            found = harness(url, tmp_path)
    assert found["acc,none"] == expected["accuracy"]
    assert found["acc_norm,none"] == expected["accuracy_by_byte"]
    for sample in samples(tmp_path):
        ours = expected["log_likelihoods"][sample["doc_id"]]
        theirs = [float(response[0][0]) for response in sample["resps"]]
        assert theirs == pytest.approx(ours, abs=1e-3)  # as many digits as the API prints


def samples(folder: Path) -> list[dict[str, Any]]:
    """What the harness noted of each question."""
    file = next((folder / "out").rglob("samples_*.jsonl"))
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(found) == len(_QUESTIONS)
    return found


def harness(url: str, folder: Path) -> dict[str, Any]:
    """Run lm-eval and read the task's results."""
    assert _PYTHON is not None
    tokenizer = tokenizer_folder(folder / "tokenizer")
    arguments = [
        "model=tiny",
        f"base_url={url}/v1/completions",
        f"tokenizer={tokenizer}",
        "add_bos_token=True",
        "max_length=90",
        "num_concurrent=2",
    ]
    command = [_PYTHON, "-m", "lm_eval", "run", "--model", "local-completions"]
    command += ["--tasks", "culet_choice", "--include_path", str(folder / "tasks")]
    command += ["--model_args", ",".join(arguments), "--output_path", str(folder / "out")]
    command += ["--log_samples"]
    environment = os.environ | {"HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        print(done.stdout[-2000:], done.stderr[-4000:], file=sys.stderr)
    assert done.returncode == 0
    report = next((folder / "out").rglob("results_*.json"))
    results: dict[str, Any] = json.loads(report.read_text())["results"]["culet_choice"]
    return results
