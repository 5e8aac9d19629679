"""Fetching models from the Hugging Face hub into its cache, finding and removing them there.

Tokens, endpoint, cache folder and offline mode are huggingface_hub's own settings (HF_TOKEN,
HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE, `hf auth login`), so everything is shared with other tools.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from culet.errors import CuletError, UsageError
from culet.formats.shards import shards_of
from culet.hub.choice import Reference, choose_files, is_companion, quant_of

_MB = 1e6


@dataclass(frozen=True, slots=True)
class StoredModel:
    """One model of the cache.

    Attributes:
        name: what MODEL arguments call it.
        path: what to open: a GGUF file (of a split model the first) or a folder.
        num_bytes: of its files.
        last_used: seconds since 1970.
    """

    name: str
    path: Path
    num_bytes: int
    last_used: float


def pull(reference: Reference) -> Path:
    """Fetch what is missing and return what to open; an interrupted download is resumed.

    Progress goes to standard error where that is a terminal.

    Raises:
        UsageError: no such repository or file, no permission, or several files fit.
        CuletError: the hub can't be reached, or the disk is too small or can't be written.
    """
    from huggingface_hub import HfApi, hf_hub_download

    with _hub_errors(reference):
        info = HfApi().model_info(reference.repo, files_metadata=True)
        sizes = {sibling.rfilename: sibling.size or 0 for sibling in info.siblings or []}
        files = choose_files(reference, list(sizes))
        _require_space(reference, {name: sizes[name] for name in files}, str(info.sha))
        paths = [Path(hf_hub_download(reference.repo, n, revision=info.sha)) for n in files]
        _remember_main(reference.repo, str(info.sha))
    return _what_to_open(paths[0], files[0])


def _require_space(reference: Reference, sizes: dict[str, int], commit: str) -> None:
    """Refuse, before anything is fetched, what the disk has no room for.

    Args:
        sizes: of the model's files in bytes, 0 where the hub doesn't say.
    """
    from huggingface_hub import try_to_load_from_cache

    cached = {
        name
        for name in sizes
        if isinstance(try_to_load_from_cache(reference.repo, name, revision=commit), str)
    }
    begun = sum(p.stat().st_size for p in _folder_of(reference.repo).glob("blobs/*.incomplete"))
    needed = sum(size for name, size in sizes.items() if name not in cached) - begun
    folder = Path(cache_folder())
    there = next(p for p in (folder, *folder.parents) if p.exists())
    free = shutil.disk_usage(there).free
    if needed > free:
        raise CuletError(
            f"{reference}: {needed / _MB:.0f} MB are to be fetched, the cache at {folder} has room "
            f"for {free / _MB:.0f} MB (`culet list` and `culet rm` make room, HF_HOME moves it)"
        )


def find(reference: Reference) -> Path | None:
    """What to open of a model that is whole in the cache; None if it isn't. No network.

    Raises:
        UsageError: the cache holds several that fit.
    """
    from huggingface_hub import try_to_load_from_cache

    for snapshot in _snapshots(reference.repo):
        names = [p.relative_to(snapshot).as_posix() for p in snapshot.rglob("*") if p.is_file()]
        try:
            files = choose_files(reference, names)
        except UsageError:
            continue
        if files[0].endswith(".safetensors") and not _is_whole(snapshot, files):
            continue
        found = try_to_load_from_cache(reference.repo, files[0], revision=snapshot.name)
        if isinstance(found, str):
            return _what_to_open(Path(found), files[0])
    return None


def stored_models() -> list[StoredModel]:
    """The models of the cache, by name."""
    models = []
    for repo in _repos():
        seen: set[str] = set()
        for revision in sorted(repo.revisions, key=lambda r: r.last_modified, reverse=True):
            files = {f.file_path.relative_to(revision.snapshot_path).as_posix(): f
                     for f in revision.files}  # fmt: skip
            for name, members in _models_in(repo.repo_id, list(files)):
                if name in seen or not _is_whole(revision.snapshot_path, members):
                    continue
                seen.add(name)
                path = _what_to_open(revision.snapshot_path / members[0], members[0])
                size = sum(files[m].size_on_disk for m in members)
                used = max(files[m].blob_last_accessed for m in members)
                models.append(StoredModel(name, path, size, used))
    return sorted(models, key=lambda m: m.name)


def remove(reference: Reference) -> int:
    """Remove a repository, or with a selector one of its models; returns the bytes freed.

    Raises:
        UsageError: the cache doesn't hold it, or several fit.
        CuletError: the disk can't be written.
    """
    repo = next((r for r in _repos() if r.repo_id == reference.repo), None)
    if repo is None:
        raise UsageError(f"{reference}: the cache at {cache_folder()} doesn't hold it")
    try:
        if reference.selector is None:
            # Not huggingface_hub's delete_revisions: copies of a repository share its commits, and
            # it would remove theirs.
            shutil.rmtree(repo.repo_path)
            return int(repo.size_on_disk)
        return _remove_files(reference, repo)
    except OSError as error:
        raise CuletError(f"{reference}: can't be removed ({error})") from error


def _remove_files(reference: Reference, repo: Any) -> int:
    """Remove one model's files from every revision, and what no revision refers to any more."""
    blobs: dict[Path, int] = {}
    for revision in repo.revisions:
        by_name = {
            f.file_path.relative_to(revision.snapshot_path).as_posix(): f for f in revision.files
        }
        try:
            chosen = choose_files(reference, list(by_name))
        except UsageError:
            continue
        for name in chosen:
            blobs[by_name[name].blob_path] = by_name[name].size_on_disk
            by_name[name].file_path.unlink()
    if not blobs:
        raise UsageError(f"{reference}: the cache at {cache_folder()} doesn't hold it")
    kept = {f.resolve() for r in repo.revisions for f in r.snapshot_path.rglob("*") if f.is_file()}
    freed = 0
    for blob, size in blobs.items():
        if blob not in kept:
            blob.unlink(missing_ok=True)
            freed += size
    return freed


def _models_in(repo: str, names: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Name and files of each model among a snapshot's files."""
    for name in sorted(n for n in names if n.endswith(".gguf") and not is_companion(n)):
        parent, _, base = name.rpartition("/")
        shards = [f"{parent}/{s}" if parent else s for s in shards_of(base)]
        if name != shards[0]:
            continue
        quant = quant_of(name)
        reference = Reference(repo, quant)
        try:
            chosen = choose_files(reference, names)
        except UsageError:
            chosen = []
        yield (str(reference) if chosen[:1] == [name] else f"{repo}:{name}"), shards
    if "config.json" in names and any(n.endswith(".safetensors") for n in names):
        with contextlib.suppress(UsageError):
            yield repo, choose_files(Reference(repo), names)


def _what_to_open(path: Path, name: str) -> Path:
    """A GGUF is opened by its (first) file, a safetensors model by its folder."""
    return path if name.endswith(".gguf") else path.parent


def _is_whole(snapshot: Path, files: list[str]) -> bool:
    if not all((snapshot / name).is_file() for name in files):
        return False
    return files[0].endswith(".gguf") or "config.json" in files


def _snapshots(repo: str) -> list[Path]:
    """Snapshot folders of a repository, the one that `main` names first."""
    folder = _folder_of(repo)
    snapshots = sorted((p for p in folder.glob("snapshots/*") if p.is_dir()), reverse=True)
    try:
        main = (folder / "refs" / "main").read_text().strip()
    except OSError:
        main = ""
    return sorted(snapshots, key=lambda p: p.name != main)


def _remember_main(repo: str, commit: str) -> None:
    """Say which snapshot is current, as a download by branch name would."""
    refs = _folder_of(repo) / "refs"
    refs.mkdir(parents=True, exist_ok=True)
    (refs / "main").write_text(commit)


def _folder_of(repo: str) -> Path:
    """Where the cache has a repository, if it has it."""
    from huggingface_hub.file_download import repo_folder_name

    return Path(cache_folder()) / repo_folder_name(repo_id=repo, repo_type="model")


def cache_folder() -> str:
    from huggingface_hub import constants

    return str(constants.HF_HUB_CACHE)


def _cache() -> Any:
    """huggingface_hub's account of its cache; None before anything was fetched."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        return scan_cache_dir()
    except (CacheNotFound, RuntimeError):  # RuntimeError: it would lie in a home that isn't there
        return None


def _repos() -> list[Any]:
    """The model repositories of the cache."""
    cache = _cache()
    return [] if cache is None else [r for r in cache.repos if r.repo_type == "model"]


@contextlib.contextmanager
def _hub_errors(reference: Reference) -> Iterator[None]:
    """The hub's errors as one sentence each."""
    from huggingface_hub import constants
    from huggingface_hub import errors as hub

    # Of the HTTP library that huggingface_hub uses, which isn't ours to choose.
    transport_error: type[Exception] = hub.HTTPError  # type: ignore[attr-defined]
    try:
        yield
    except hub.GatedRepoError as error:
        raise UsageError(
            f"{reference}: the repository is gated; accept its terms on {constants.ENDPOINT}/"
            f"{reference.repo} and give a token (HF_TOKEN or `hf auth login`)"
        ) from error
    except hub.RepositoryNotFoundError as error:
        raise UsageError(
            f"{reference}: no such repository on {constants.ENDPOINT}, or it is private and no "
            "token allows it (HF_TOKEN or `hf auth login`)"
        ) from error
    except hub.OfflineModeIsEnabled as error:
        raise UsageError(
            f"{reference}: is not in the cache at {cache_folder()}, and HF_HUB_OFFLINE forbids to "
            "fetch it"
        ) from error
    except (hub.HfHubHTTPError, hub.LocalEntryNotFoundError, transport_error) as error:
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise CuletError(
            f"{reference}: can't be fetched from {constants.ENDPOINT} ({first_line})"
        ) from error
    except OSError as error:
        raise CuletError(f"{reference}: can't be written to the cache ({error})") from error
