"""Conditions of requests: If-Match, what servers make of it, and HEADs that lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpushard.errors import ObjectChangedError, StoreError
from gpushard.stores.http.store import HttpStore
from gpushard.stores.obstores import refusal_of
from stored_object import BODY, read_one

if TYPE_CHECKING:
    from range_server import RangeServer

obstore = pytest.importorskip("obstore", reason="the extra `remote` is not installed")

pytestmark = pytest.mark.network


@pytest.mark.parametrize("etags", ["weak", None])
def test_a_refused_condition_that_nobody_made_is_no_replaced_object(
    server: RangeServer, store: HttpStore, etags: Any
) -> None:
    server.etags = etags
    version = read_one(store, -16).version
    server.statuses["c/0"] = 412
    for asked in (None, version):
        with pytest.raises(StoreError, match="412") as caught:
            read_one(store, 0, 4, version=asked)
        assert not isinstance(caught.value, ObjectChangedError)


def test_an_object_that_a_head_calls_empty_is_looked_at(server, store) -> None:
    server.answers_suffixes, server.head_nbytes = False, 0
    assert read_one(store, -20).data.tobytes() == BODY[-20:]
    (server.directory / "c/0").write_bytes(b"")
    assert read_one(store, -20).data.tobytes() == b""


@pytest.mark.parametrize("told", [1, 19, 300, 1023, 5000])
def test_the_end_of_an_object_of_two_sizes_is_none(server, store, told) -> None:
    server.answers_suffixes, server.head_nbytes = False, told
    with pytest.raises(StoreError, match=r"two sizes|416"):
        read_one(store, -20)


def test_an_object_that_others_have_read_is_compared_afterwards(server, store) -> None:
    version = read_one(store, -16).version
    store.refuse_changed("c/0", version)
    (server.directory / "c/0").write_bytes(b"x" * len(BODY))
    with pytest.raises(ObjectChangedError, match="replaced"):
        store.refuse_changed("c/0", version)
    (server.directory / "c/0").unlink()
    with pytest.raises(ObjectChangedError, match="no object"):
        store.refuse_changed("c/0", version)
    server.statuses["c/0"] = 403
    with pytest.raises(StoreError, match="403") as caught:
        store.refuse_changed("c/0", version)
    assert not isinstance(caught.value, ObjectChangedError)


@pytest.mark.parametrize(
    ("kind", "status"), [("PermissionDeniedError", 403), ("UnauthenticatedError", 401)]
)
def test_what_may_not_be_read_is_told_from_credentials_that_are_refused(
    kind: str, status: int
) -> None:
    """Only the first may stand for a missing object."""
    error = getattr(obstore.exceptions, kind)("no")
    assert refusal_of(error).status == status
