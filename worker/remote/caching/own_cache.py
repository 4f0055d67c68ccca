"""The cache of this process, as the environment wants it now."""

from __future__ import annotations

import os
import threading

from hostmesh.worker.remote.caching.cache import Cache
from hostmesh.worker.remote.caching.settings import CacheSettings

_lock = threading.Lock()
_caches: dict[tuple[int, CacheSettings], Cache] = {}


def own_cache() -> Cache:
    settings = CacheSettings.from_env()
    with _lock:
        key = os.getpid(), settings
        if key not in _caches:
            _caches[key] = Cache(settings)
        return _caches[key]
