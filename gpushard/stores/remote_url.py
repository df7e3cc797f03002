"""URL -> obstore store, with limits on the wait for a dead server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import SplitResult, urlsplit

from gpushard.errors import StoreError, UnsupportedError
from gpushard.options import DEFAULT, Options
from gpushard.stores.failures import told_by, without_credentials
from gpushard.stores.remote import RemoteStore

# Time limit for listings and writes, which have no other limit. The body of an answer
# has a limit of its own, which is shorter up to 17 MiB. Bodies must not be encoded,
# because byte ranges of an encoded body are not ranges of the object.
_CLIENT_OPTIONS = {"timeout": "300s"}
_HEADERS = {"accept-encoding": "identity"}

# fsspec's names for settings -> obstore's names.
_FSSPEC_NAMES = {
    "anon": "skip_signature",
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token",
    "endpoint_url": "endpoint",
}


def open_url(
    url: str, storage_options: Mapping[str, Any], options: Options = DEFAULT
) -> RemoteStore:
    """Store whose root is `url`.

    Parameters
    ----------
    url
        ``http(s)://``, ``s3://``, ``gs://`` or ``az://``. The usual environment
        variables (``AWS_*``...) provide settings that `storage_options` leave open.
    storage_options
        obstore's configuration for this kind of store, plus `client_options`,
        `retry_config` and `credential_provider`. fsspec's names `anon`, `key`,
        `secret`, `token`, `endpoint_url` and `headers` (of every request) also work.
        `forbidden_is_missing`: take the status 403 for a missing object, because S3
        answers so to callers that may not list.
    options
        `patience_s` and `min_nbytes_per_s` say when to give up on a server.

    Raises
    ------
    UnsupportedError
        obstore is not installed, or the URL is malformed or has a query.
    StoreError
        obstore refuses the URL or a setting.
    """
    try:
        from obstore.exceptions import BaseError
    except ImportError as error:
        raise UnsupportedError(
            f"reading {urlsplit(url).scheme}:// URLs needs obstore",
            hint="run: pip install 'gpushard[remote]'",
        ) from error
    parts = _parts(url)
    settings = dict(storage_options)
    forbidden_is_missing = bool(settings.pop("forbidden_is_missing", False))
    limits = _limits(options.patience_s, settings, parts.scheme)
    config = {_FSSPEC_NAMES.get(name, name): value for name, value in settings.items()}
    try:
        store = _maker(parts.scheme)(url, **limits, **config)
    except (BaseError, ValueError, TypeError) as error:
        raise StoreError(
            f"cannot open {without_credentials(url)}: {told_by(error)}",
            hint="check the URL and the names in storage_options",
        ) from error
    return RemoteStore(
        store,
        url.rstrip("/"),
        options=options,
        forbidden_is_missing=forbidden_is_missing,
    )


def _parts(url: str) -> SplitResult:
    """Parts of a URL, which must be able to name a store's root."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise UnsupportedError(
            f"the URL is malformed: {error}", got=repr(url), hint="check its spelling"
        ) from error
    if parts.query or parts.fragment:
        raise UnsupportedError(
            "a URL with a query or a fragment cannot be a store's root",
            got=parts.query or parts.fragment,
            hint="pass the URL of the directory; credentials go in storage_options",
        )
    return parts


def _maker(scheme: str) -> Any:
    """Function that makes an obstore store from a URL."""
    from obstore import store as obstores

    # obstore.store.from_url would take some https:// addresses for S3 or Azure, and
    # look for credentials that a public server does not need.
    is_http = scheme.lower() in ("http", "https")
    return obstores.HTTPStore if is_http else obstores.from_url


def _limits(
    patience_s: float, settings: dict[str, Any], scheme: str
) -> dict[str, dict[str, Any]]:
    """Settings of obstore's client and of its retries; `settings` may change them.

    A server that accepts connections but never answers costs two reads, which take two
    thirds of the patience.
    """
    read_limit = f"{patience_s / 3:g}s"
    client_options = {
        **_CLIENT_OPTIONS,
        "connect_timeout": read_limit,
        "read_timeout": read_limit,
        "allow_http": _uses_plain_http(scheme, settings),
        **settings.pop("client_options", {}),
    }
    client_options["default_headers"] = {
        **_HEADERS,
        **client_options.get("default_headers", {}),
        **settings.pop("headers", {}),
    }
    return {
        "client_options": client_options,
        "retry_config": {
            "max_retries": 4,
            # No attempt starts after this time, so at most one more read is added.
            "retry_timeout": timedelta(seconds=patience_s * 8 / 15),
            **settings.pop("retry_config", {}),
        },
    }


def _uses_plain_http(scheme: str, settings: Mapping[str, Any]) -> bool:
    """Whether the user chose a server without TLS."""
    endpoint = (
        settings.get("endpoint")
        or settings.get("endpoint_url")
        or settings.get("aws_endpoint")
        or os.environ.get("AWS_ENDPOINT_URL")
        or os.environ.get("AWS_ENDPOINT")
        or ""
    )
    return scheme.lower() == "http" or str(endpoint).lower().startswith("http://")
