"""Objects that are in memory -> a store, from which a whole fetched shard is read."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from gpushard.options import KIB
from gpushard.stores.base import ByteRequest, FetchCosts, Fetched

# Nothing is copied, so a gap costs less than a request. But the work is shared by the
# bytes of requests, so wide gaps would cut little work into many shares.
_COSTS = FetchCosts(
    gap_nbytes=16 * KIB,
    max_request_nbytes=2**62,
    concurrency=1,
    prefers_whole_objects=False,
    reads_in_shares=True,
)


class HeldObjects:
    """Store of whole objects that were fetched before; None is one that does not exist.

    `url` is the address of the store that they come from, for messages.
    """

    def __init__(self, objects: Mapping[str, Fetched | None], url: str) -> None:
        self._objects = objects
        self.url = url
        self.costs = _COSTS

    def read(self, requests: Sequence[ByteRequest]) -> list[Fetched | None]:
        """Views of the objects, one for each request; None if there is no object."""
        return [self._cut(request) for request in requests]

    def _cut(self, request: ByteRequest) -> Fetched | None:
        whole = self._objects.get(request.key)
        if whole is None:
            return None
        data = whole.data[request.start : request.stop][: request.max_nbytes]
        return Fetched(data, len(whole.data), whole.version)

    def current_version(self, key: str) -> tuple[bool, Hashable | None]:
        """Version of a held object, which is current by definition."""
        whole = self._objects.get(key)
        return True, None if whole is None else whole.version

    def get(self, key: str) -> bytes | None:
        """Bytes of a held object; None if there is none."""
        whole = self._objects.get(key)
        return None if whole is None else whole.data.tobytes()

    def list_children(
        self,
        prefix: str,  # noqa: ARG002  the protocol's signature
    ) -> list[str] | None:
        """None: what was fetched is not all that there is."""
        return None
