"""Files of datasets and models on the Hugging Face hub, or on a mirror of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from hostmesh.worker.remote.failures import Kind, StoreFailure, wants_own_words
from hostmesh.worker.remote.stores.base import RemoteFile
from hostmesh.worker.remote.stores.http import HttpStore
from hostmesh.worker.remote.stores.settings import find_address
from hostmesh.worker.specs.packages import load

ENDPOINT = "HF_ENDPOINT"
# `hf://datasets/USER/NAME@REVISION/PATH`; of models without the first word. A revision may be one that the hub made,
# such as `refs/convert/parquet` or `refs/pr/1`.
PLACE = re.compile(r"hf://(datasets/|spaces/)?(?!datasets/|spaces/)([^/@]+/[^/@]+)(?:@(refs/[^/]+/[^/]+|[^/]+))?/(.*)")
# `<https://…?cursor=…>; rel="next"`: where a long list goes on.
NEXT = re.compile(r'<([^>]+)>;\s*rel="next"')


@dataclass(frozen=True)
class HubPlace:
    kind: str  # `datasets/`, `spaces/`, or nothing for models
    repository: str
    revision: str
    path: str

    @classmethod
    def parse(cls, url: str) -> HubPlace:
        found = PLACE.fullmatch(url)
        if found is None:
            raise StoreFailure(
                Kind.REFUSED, "wanted hf://datasets/USER/NAME/PATH, or hf://datasets/USER/NAME@REVISION/PATH"
            )
        return cls(found[1] or "", found[2], found[3] or "main", found[4])


class HubStore(HttpStore):
    """A file's version is the word of whoever sends its bytes, so that a branch that moves on is noticed."""

    def __init__(self) -> None:
        super().__init__()
        self._hub = load("huggingface_hub", "huggingface_hub", "hugging-face", "hf://")
        self.where = find_address(ENDPOINT).rstrip("/")
        # The package itself knows its modules only once somebody has imported them.
        constants = load("huggingface_hub.constants", "huggingface_hub", "hugging-face", "hf://")
        self._endpoint = self.where or constants.ENDPOINT

    def look(self, url: str) -> RemoteFile:
        found = super().look(self._address(url))
        return RemoteFile(url, found.size, found.version, self.where)

    def read(self, file: RemoteFile, start: int, stop: int) -> bytes:
        return super().read(RemoteFile(self._address(file.url), file.size, file.version, self.where), start, stop)

    @wants_own_words()
    def list(self, url: str) -> list[str]:
        place = HubPlace.parse(url)
        folder = place.path.rpartition("/")[0]
        at = f"{self._endpoint}/api/{place.kind or 'models/'}{place.repository}/tree/{quote(place.revision, safe='')}"
        page, found = f"{at}/{quote(folder)}?recursive=true", []
        while page:
            _, headers, data = self.get(page, {})
            found += [each["path"] for each in json.loads(data) if each["type"] == "file"]
            link = NEXT.search(headers.get("Link", ""))
            page = link[1] if link else ""
        start = url.removesuffix(place.path)
        return [start + path for path in found if path.startswith(place.path)]

    def _address(self, url: str) -> str:
        place = HubPlace.parse(url)
        repository = f"{self._endpoint}/{place.kind}{place.repository}"
        return f"{repository}/resolve/{quote(place.revision, safe='')}/{quote(place.path)}"

    async def _headers(self, url: str) -> Mapping[str, str]:
        """The token of this machine's user, for the hub alone: aiohttp leaves it out where it is sent on elsewhere."""
        token: Any = self._hub.get_token()
        return {"Authorization": f"Bearer {token}"} if token and url.startswith(self._endpoint) else {}

    def _encode(self, url: str) -> Any:
        from yarl import URL

        return URL(url, encoded=True)
