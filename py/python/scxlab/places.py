# SPDX-License-Identifier: GPL-2.0-only
"""Stores in folders, and on any file system that fsspec knows."""

from __future__ import annotations

from os import PathLike, fspath
from typing import Any

from . import _scxlab
from ._scxlab import StoreError

#: Protocols of fsspec that write an object as a whole or not at all.
WHOLE_OBJECTS = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "memory"})


def open_store(store: str | PathLike[str]) -> _scxlab.Store:
    """Opens a store, or makes one at an empty place."""
    url = fspath(store)
    if url.startswith("file://"):
        url = url.removeprefix("file://")
    if "://" not in url:
        return _scxlab.Store.local(url)
    try:
        import fsspec
    except ImportError:
        raise StoreError(f"{url}: fsspec is not installed: pip install fsspec") from None
    try:
        fs, root = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise StoreError(f"{url}: {error}") from error
    return _scxlab.Store.remote(url, Place(fs, root))


class Place:
    """A folder on a file system of fsspec."""

    def __init__(self, fs: Any, root: str) -> None:
        self._fs = fs
        self._root = root.rstrip("/")
        protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
        self._whole = bool(protocols & WHOLE_OBJECTS)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def list(self, folder: str) -> list[str]:
        self._fs.invalidate_cache()
        try:
            found = self._fs.ls(self._path(folder), detail=False)
        except FileNotFoundError:
            return []
        names = (str(path).rstrip("/").rsplit("/", 1)[-1] for path in found)
        return [name for name in names if not name.endswith(".part")]

    def read(self, name: str) -> bytes:
        data: bytes = self._fs.cat_file(self._path(name))
        return data

    def write(self, name: str, data: bytes) -> None:
        path = self._path(name)
        self._fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        if self._whole:
            self._fs.pipe_file(path, data)
        else:
            self._fs.pipe_file(f"{path}.part", data)
            self._fs.mv(f"{path}.part", path)

    def remove(self, name: str) -> None:
        self._fs.rm_file(self._path(name))
