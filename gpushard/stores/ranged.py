"""Objects of a server that answers byte ranges, or that has to be coaxed into it.

Requests run in threads. They wait without the interpreter's lock and need no event
loop, so they work alike in scripts, notebooks and worker threads.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial

import numpy as np

from gpushard.options import Options
from gpushard.stores.answers import (
    Answer,
    Client,
    ObjectFacts,
    RefusalError,
    is_other_version,
    version_of,
)
from gpushard.stores.base import ByteRequest, FetchCosts, Fetched
from gpushard.stores.documents import document_bytes, document_request
from gpushard.stores.failures import (
    object_changed,
    other_bytes,
    refuse_unsafe_key,
    two_sizes,
    without_credentials,
)
from gpushard.stores.patience import Patience
from gpushard.stores.wholes import (
    RequestGroup,
    WholeObjectMemory,
    answer_from,
    read_by_object,
    refuse_large_object,
)
from gpushard.threads.workers import run_side_by_side

_MISSING, _FORBIDDEN, _PRECONDITION_FAILED, _UNSATISFIABLE = 404, 403, 412, 416
# What servers without suffix ranges answer to them.
_SUFFIX_REFUSED = frozenset((400, 405, 416, 501))


class RangedStore:
    """Read access to the objects of a server, whatever the client.

    Safe for several threads. Versions are strong ETags (RFC 9110, 8.8.3). A weak ETag,
    or a date in whole seconds, does not guarantee the same bytes. It may show within a
    read that the bytes changed, but nothing is kept because of it.

    If `forbidden_is_missing`, the status 403 means that there is no such object. The
    memory limit of the options also limits whole objects from servers without ranges.

    Attributes
    ----------
    url
        Address of the root, without credentials.
    costs
        Costs of the store: a request costs a round trip.
    """

    def __init__(
        self,
        client: Client,
        url: str,
        costs: FetchCosts,
        patience: Patience,
        options: Options,
        *,
        forbidden_is_missing: bool,
    ) -> None:
        self.is_read_only = False  # set later by `resolve.adapt`
        self._client = client
        self.url = without_credentials(url)
        self.costs = costs
        self._patience = patience
        self._options = options
        self._forbidden_is_missing = forbidden_is_missing
        self._refuses_suffixes = False
        self._ignores_ranges = False
        self._whole_memory = WholeObjectMemory(options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def read(self, requests: Sequence[ByteRequest]) -> list[Fetched | None]:
        """Answer each request, in order; None for an object that does not exist."""
        group = RequestGroup()
        if self._ignores_ranges:
            return self._read_from_wholes(requests, group)
        read = partial(self._read_one, group=group)
        return run_side_by_side(read, requests, self.costs.concurrency)

    def current_version(
        self,
        key: str,  # noqa: ARG002  the protocol's signature
    ) -> tuple[bool, Hashable | None]:
        """Always ``(False, None)``, because a check costs a request."""
        return False, None

    def get(self, key: str) -> bytes | None:
        """Bytes of a whole object; None if there is no object."""
        fetched = self._read_one(document_request(key), RequestGroup())
        return document_bytes(fetched, key, self.url)

    def list_children(
        self,
        prefix: str,  # noqa: ARG002  the protocol's signature
    ) -> list[str] | None:
        """None, because plain HTTP has no listing."""
        return None

    def refuse_changed(self, key: str, version: Hashable | None) -> None:
        """Raise `ObjectChangedError` unless an object is of `version`.

        This costs a request.
        """
        self._patience.ask(self._refuse_changed, ByteRequest(key, version=version))

    def _refuse_changed(self, request: ByteRequest) -> None:
        try:
            self._ask_head(request)
        except RefusalError as refusal:
            if refusal.status == _MISSING:
                raise object_changed(self.url, request, "no object") from refusal
            raise refusal.as_store_error(self.url, request.key) from refusal

    def _read_one(self, request: ByteRequest, group: RequestGroup) -> Fetched | None:
        """Answer one request; repeat it while the server is busy."""
        return self._patience.ask(partial(self._answer, group=group), request)

    def _answer(self, request: ByteRequest, group: RequestGroup) -> Fetched | None:
        """Answer one request, in another way if the server refuses the first way."""
        refuse_unsafe_key(request.key, self.url)
        try:
            if request.start < 0:
                return self._read_suffix(request, group)
            return self._read_range(request, group)
        except RefusalError as refusal:
            if not refusal.is_rangeless:
                return self._answer_to_refusal(request, refusal)
        self._ignores_ranges = True
        return self._answers_from_whole([request], group)[0]

    def _answer_to_refusal(self, request: ByteRequest, refusal: RefusalError) -> None:
        """None for a missing object; raise if it existed before, or for a failure."""
        if refusal.status == _MISSING:
            if request.version is not None:
                raise object_changed(self.url, request, "no object") from refusal
        elif not (self._forbidden_is_missing and refusal.status == _FORBIDDEN):
            raise refusal.as_store_error(self.url, request.key) from refusal

    def _read_range(self, request: ByteRequest, group: RequestGroup) -> Fetched | None:
        """Bytes of an absolute range, cut at the end of the object."""
        start, stop = request.start, request.stop
        if stop is not None and stop <= start:
            return self._empty(self._ask_head(request))
        if start == 0 and stop is None:
            return self._request(request, None, group)
        try:
            return self._request(request, (start, stop), group)
        except RefusalError as refusal:
            if refusal.status != _UNSATISFIABLE:
                raise
            facts = self._ask_head(request)
            if start < facts.nbytes:
                raise
            return self._empty(facts)

    def _read_suffix(self, request: ByteRequest, group: RequestGroup) -> Fetched | None:
        """Last bytes of an object; if suffixes are refused, its size is asked first."""
        if not self._refuses_suffixes:
            try:
                return self._request(request, (request.start, None), group)
            except RefusalError as refusal:
                if not (refusal.is_rangeless or refusal.status in _SUFFIX_REFUSED):
                    raise
        facts = self._ask_head(request)
        if (nbytes := facts.nbytes) == 0:  # or the server does not support HEAD
            return self._answers_from_whole([request], group)[0]
        self._refuses_suffixes = True
        start = max(0, nbytes + request.start)
        version = request.version or version_of(facts)
        absolute = ByteRequest(request.key, start, nbytes, version, request.into)
        answer = self._request(absolute, (start, nbytes), group)
        if answer is not None and answer.object_nbytes != nbytes:
            raise two_sizes(self.url, request.key, nbytes, answer.object_nbytes)
        return answer

    def _request(
        self,
        request: ByteRequest,
        span: tuple[int, int | None] | None,
        group: RequestGroup,
    ) -> Fetched | None:
        """Bytes from one GET, checked against the request."""
        limit = request.max_nbytes
        with self._send_get(request, span) as answer:
            if (facts := answer.facts) is None:
                return self._cut_answers(answer, [request], group)[0]
            self._check_version(request, facts)
            if limit is None or facts.nbytes <= limit:
                return self._read_checked(request, answer, facts)
        # Only the first `limit` bytes are wanted, so they are requested instead.
        return self._read_range(request._replace(stop=limit, max_nbytes=None), group)

    def _send_get(
        self, request: ByteRequest, span: tuple[int, int | None] | None
    ) -> Answer:
        """Answer to a GET; raise if the object is no longer of the version wanted."""
        e_tag = request.version if isinstance(request.version, str) else None
        try:
            return self._client.get(request.key, span, e_tag)
        except RefusalError as refusal:
            # Without a condition of ours, it was that of a proxy or a server.
            if e_tag is None or refusal.status != _PRECONDITION_FAILED:
                raise
            raise object_changed(self.url, request, "another version") from refusal

    def _read_checked(
        self, request: ByteRequest, answer: Answer, facts: ObjectFacts
    ) -> Fetched:
        """Bytes of an answer, which must be those that were asked for."""
        expected = request.within(facts.nbytes)
        asked_nbytes = expected[1] - expected[0]
        data = answer.read_body(asked_nbytes, request.into)
        if answer.span != expected or len(data) != asked_nbytes:
            raise other_bytes(self.url, request.key, expected, answer.span, len(data))
        return Fetched(data, facts.nbytes, version_of(facts))

    def _ask_head(self, request: ByteRequest) -> ObjectFacts:
        """Metadata that the server reports about an object."""
        facts = self._client.head(request.key)
        self._check_version(request, facts)
        return facts

    def _empty(self, facts: ObjectFacts) -> Fetched:
        return Fetched(np.empty(0, np.uint8), facts.nbytes, version_of(facts))

    def _read_from_wholes(
        self, requests: Sequence[ByteRequest], group: RequestGroup
    ) -> list[Fetched | None]:
        """Answers cut from whole objects, each of which is fetched once."""

        def ask(for_one: Sequence[ByteRequest]) -> list[Fetched | None]:
            def answer(_: ByteRequest) -> list[Fetched | None]:
                return self._answers_from_whole(for_one, group)

            return self._patience.ask(answer, for_one[0])

        return read_by_object(requests, ask, self.costs.concurrency)

    def _answers_from_whole(
        self, requests: Sequence[ByteRequest], group: RequestGroup
    ) -> list[Fetched | None]:
        """Answers to requests for one object, from a server without ranges."""
        request = requests[0]
        refuse_unsafe_key(request.key, self.url)
        try:
            with self._client.get(request.key, None, None) as answer:
                return self._cut_answers(answer, requests, group)
        except RefusalError as refusal:
            return [self._answer_to_refusal(request, refusal)] * len(requests)

    def _cut_answers(
        self, answer: Answer, requests: Sequence[ByteRequest], group: RequestGroup
    ) -> list[Fetched | None]:
        """Answers to requests for one object, of which all is in `answer`."""
        request = ByteRequest(requests[0].key, version=requests[0].version)
        facts = self._check_whole(request, answer)
        nbytes = self._whole_memory.most_nbytes if facts is None else facts.nbytes
        with self._whole_memory.reserved(nbytes, group) as had_room:
            if had_room:
                whole = self._read_whole(request, answer)
            else:  # the answer may have expired during the wait
                whole = self._read_whole_again(request, facts)
            return [answer_from(whole, one) for one in requests]

    def _read_whole_again(
        self, request: ByteRequest, facts: ObjectFacts | None
    ) -> Fetched:
        """Whole object, if it is still the one of an earlier answer."""
        if facts is not None:
            request = request._replace(version=version_of(facts))
        with self._client.get(request.key, None, None) as answer:
            self._check_whole(request, answer)
            return self._read_whole(request, answer)

    def _check_whole(self, request: ByteRequest, answer: Answer) -> ObjectFacts | None:
        """Refuse an answer whose object may not be read whole; return what it tells."""
        if (facts := answer.facts) is not None:
            self._check_version(request, facts)
            self._refuse_large(request.key, facts.nbytes)
        return facts

    def _read_whole(self, request: ByteRequest, answer: Answer) -> Fetched:
        """Whole object from an answer's body."""
        facts = answer.facts
        if facts is not None:
            return self._read_checked(request, answer, facts)
        data, facts = answer.read_unsized_body(self._whole_memory.most_nbytes)
        self._refuse_large(request.key, len(data))
        self._check_version(request, facts)
        return Fetched(data, len(data), version_of(facts))

    def _refuse_large(self, key: str, nbytes: int) -> None:
        """Refuse a large object, and request ranges again the next time.

        A proxy may have ignored ranges only because it was overloaded for a moment.
        """
        most = self._whole_memory.most_nbytes
        self._ignores_ranges &= nbytes <= most
        refuse_large_object(self.url, key, nbytes, most)

    def _check_version(self, request: ByteRequest, facts: ObjectFacts) -> None:
        """Refuse another version, because some servers ignore If-Match."""
        if request.version is not None and is_other_version(request.version, facts):
            raise object_changed(self.url, request, str(version_of(facts)))
