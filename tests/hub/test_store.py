"""pull, list, rm and MODEL names, each in a process of its own against a hub on the loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_server import FakeHub, serve

SHARDS = {f"m-BF16-0000{n}-of-00002.gguf": bytes([n]) * 5000 for n in (1, 2)}
REPOS = {
    "a/model-GGUF": {
        "README.md": b"text",
        "m-Q4_0.gguf": b"GGUF" + b"4" * 25_000_000,
        "m-Q8_0.gguf": b"GGUF" + b"8" * 10_000,
        "mmproj-BF16.gguf": b"GGUF" + b"m" * 10,
        **SHARDS,
    },
    "a/model": {
        "config.json": b"{}",
        "model.safetensors": b"12345678",
        "tokenizer.json": b"{}",
    },
    "a/private": {"m-Q4_0.gguf": b"GGUF-private"},
}


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serve(FakeHub(REPOS, private=frozenset({"a/private"}))) as running:
        yield running


class Store:
    """Runs `culet` with its own cache."""

    def __init__(self, folder: Path, hub: FakeHub) -> None:
        self.cache = folder / "hub"
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
        self.environment = kept | {
            "HF_HOME": str(folder),
            "HF_ENDPOINT": hub.url,
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_XET": "1",
        }

    def culet(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "culet", *words],
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def json(self, *words: str, **environment: str) -> dict[str, Any]:
        done = self.culet(*words, "--json", **environment)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture
def store(tmp_path: Path, hub: FakeHub) -> Store:
    return Store(tmp_path, hub)


def test_pull_one_quantisation_then_list_then_remove(store: Store, hub: FakeHub) -> None:
    path = Path(store.json("pull", "a/model-GGUF:q8_0")["path"])
    assert path.name == "m-Q8_0.gguf"
    assert path.read_bytes() == REPOS["a/model-GGUF"]["m-Q8_0.gguf"]
    fetched = {p for method, p, _ in hub.requests if method == "GET" and "/resolve/" in p}
    assert {p.rsplit("/", 1)[1] for p in fetched} == {"m-Q8_0.gguf"}

    shards = Path(store.json("pull", "a/model-GGUF:BF16")["path"])
    assert shards.name == "m-BF16-00001-of-00002.gguf"
    assert all((shards.parent / name).read_bytes() == SHARDS[name] for name in SHARDS)
    folder = Path(store.json("pull", "a/model")["path"])
    assert sorted(p.name for p in folder.iterdir()) == sorted(REPOS["a/model"])

    models = {m["name"]: m for m in store.json("list")["models"]}
    assert {name: m["bytes"] for name, m in models.items()} == {
        "a/model": sum(map(len, REPOS["a/model"].values())),
        "a/model-GGUF:BF16": 10_000,
        "a/model-GGUF:Q8_0": 10_004,
    }
    assert all(Path(m["path"]).exists() for m in models.values())

    freed = store.json("rm", "a/model-GGUF:BF16", "a/model")["freed_bytes"]
    assert freed["a/model-GGUF:BF16"] == 10_000
    assert [m["name"] for m in store.json("list")["models"]] == ["a/model-GGUF:Q8_0"]
    again = store.culet("rm", "a/model")
    assert again.returncode == 2 and "doesn't hold it" in again.stderr


def test_a_cut_download_is_resumed_where_it_stopped(store: Store, hub: FakeHub) -> None:
    whole = REPOS["a/model-GGUF"]["m-Q4_0.gguf"]
    hub.cut_after = 22_000_000  # the client writes pieces of 10 MiB
    first = store.culet("pull", "a/model-GGUF:Q4_0")
    if first.returncode:  # the client gave up at once; its next call goes on
        first = store.culet("pull", "a/model-GGUF:Q4_0")
    assert first.returncode == 0, first.stderr
    assert Path(first.stdout.strip()).read_bytes() == whole
    assert "bytes=20971520-" in [span for _, _, span in hub.requests]


def test_what_the_disk_has_no_room_for_is_not_begun(store: Store, hub: FakeHub) -> None:
    hub.claimed_bytes["m-Q8_0.gguf"] = 1 << 60
    refused = store.culet("pull", "a/model-GGUF:Q8_0")
    assert refused.returncode == 1 and len(refused.stderr.splitlines()) == 1
    assert "1152921504607 MB are to be fetched, the cache at" in refused.stderr
    assert not any("/resolve/" in path for _, path, _ in hub.requests)
    # What is there already needs no room.
    hub.claimed_bytes.clear()
    store.json("pull", "a/model-GGUF:Q8_0")
    hub.claimed_bytes["m-Q8_0.gguf"] = 1 << 60
    store.json("pull", "a/model-GGUF:Q8_0")


def test_the_cache_is_used_without_the_hub(store: Store, hub: FakeHub) -> None:
    store.json("pull", "a/model-GGUF:Q8_0")
    before = len(hub.requests)
    # Opening fails, since these bytes are no model, but what is opened is the cache's file.
    for extra in ({}, {"HF_HUB_OFFLINE": "1"}):
        found = store.culet("inspect", "a/model-GGUF:Q8_0", **extra)
        assert found.returncode == 3 and "m-Q8_0.gguf" in found.stderr
    assert len(hub.requests) == before

    missing = store.culet("inspect", "a/model-GGUF:Q4_0", HF_HUB_OFFLINE="1")
    assert missing.returncode == 2
    assert "not in the cache" in missing.stderr and "HF_HUB_OFFLINE" in missing.stderr
    unfetched = store.culet("check", "a/model-GGUF:Q4_0")
    assert "`culet pull a/model-GGUF:Q4_0` fetches it" in unfetched.stdout
    assert len(hub.requests) == before


def test_private_repositories_need_a_token(store: Store) -> None:
    refused = store.culet("pull", "a/private")
    assert refused.returncode == 2 and "HF_TOKEN" in refused.stderr
    assert "Traceback" not in refused.stderr and "hf_secret" not in refused.stderr
    allowed = store.culet("pull", "a/private", HF_TOKEN="hf_secret")
    assert allowed.returncode == 0, allowed.stderr
    assert Path(allowed.stdout.strip()).read_bytes() == b"GGUF-private"


def test_names_and_hubs_that_do_not_work(store: Store) -> None:
    for name, expected in {
        "nonsense": "not owner/repo",
        "a/nothing": "no such repository",
        "a/model-GGUF:Q3_K": "the repository has BF16, Q4_0, Q8_0",
    }.items():
        done = store.culet("pull", name)
        assert done.returncode == 2 and expected in done.stderr, done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    unreachable = store.culet("pull", "a/model", HF_ENDPOINT="http://127.0.0.1:9")
    assert unreachable.returncode == 1 and "can't be fetched" in unreachable.stderr
