"""What orbax tells tensorstore about arrays in a bucket: it knows no s3://, and waits very long for a silent store."""

from __future__ import annotations

import functools
from typing import Any

from hostmesh.worker.saving.stores.url import StoreUrl, make_spec

# Checkpoints that were opened here; what else the program does with orbax stays as it is.
_roots: set[str] = set()


def prepare_orbax(url: StoreUrl) -> None:
    _roots.add(f"{url}/")
    _wrap_builder()


@functools.cache
def _wrap_builder() -> None:
    """orbax describes all its stores by one function, and has no option for that. What it says of gs:// is completed,
    and s3:// is given to it as gs://. It uses only what both have: reading, listing and writing on a condition."""
    from orbax.checkpoint._src.serialization import tensorstore_utils

    build = tensorstore_utils.build_kvstore_tspec

    def build_for_buckets(directory: str, *args: Any, **options: Any) -> Any:
        if not str(directory).startswith(tuple(_roots)):
            return build(directory, *args, **options)
        scheme, _, rest = str(directory).partition("://")
        return _rewrite(build(f"gs://{rest}", *args, **options), scheme)

    tensorstore_utils.build_kvstore_tspec = build_for_buckets


def _rewrite(spec: Any, scheme: str) -> Any:
    if isinstance(spec, list):
        return [_rewrite(each, scheme) for each in spec]
    if not isinstance(spec, dict):
        return spec
    if "bucket" not in spec:
        return {name: _rewrite(value, scheme) for name, value in spec.items()}
    is_chosen = scheme == "gs" and spec["driver"] != "gcs"  # by TENSORSTORE_GCS_BACKEND: it has other options
    return spec if is_chosen else make_spec(scheme, spec["bucket"], spec["path"])
