"""Open an obstore store by URL, with limits on how long a dead server may keep us."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from gpushard.errors import StoreError, UnsupportedError
from gpushard.stores.remote import RemoteStore

# A server that accepts and never answers costs two reads of 5 s and is then given up:
# less than 15 s in all. The limit of a whole request is generous: 16 MiB take 5
# minutes at 0.5 Mbit/s, and a stalled one runs into the limit of a single read.
_CLIENT_OPTIONS = {"connect_timeout": "5s", "read_timeout": "5s", "timeout": "300s"}
_RETRY_CONFIG = {"max_retries": 4, "retry_timeout": timedelta(seconds=8)}

# fsspec's spelling of what obstore also has.
_FSSPEC_NAMES = {
    "anon": "skip_signature",
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token",
    "endpoint_url": "endpoint",
}


def open_url(url: str, storage_options: Mapping[str, Any]) -> RemoteStore:
    """Store whose root is `url`.

    Parameters
    ----------
    url
        ``http(s)://``, ``s3://``, ``gs://`` or ``az://``. The usual environment
        variables (``AWS_*``...) fill in what `storage_options` leave open.
    storage_options
        obstore's configuration of that kind of store, plus `client_options`,
        `retry_config` and `credential_provider`; also `anon`, `key`, `secret`,
        `token` and `endpoint_url` as fsspec spells them.

    Raises
    ------
    UnsupportedError
        obstore is not installed, or the URL has a query.
    StoreError
        obstore refuses the URL or a setting.
    """
    try:
        from obstore import store as obstores
        from obstore.exceptions import BaseError
    except ImportError as error:
        raise UnsupportedError(
            f"reading {urlsplit(url).scheme}:// URLs needs obstore",
            hint="run: pip install 'gpushard[remote]'",
        ) from error
    parts = urlsplit(url)
    if parts.query or parts.fragment:
        raise UnsupportedError(
            "a URL with a query or a fragment cannot be a store's root",
            got=parts.query or parts.fragment,
            hint="pass the URL of the directory; credentials go in storage_options",
        )
    settings = dict(storage_options)
    client_options = {
        **_CLIENT_OPTIONS,
        "allow_http": _uses_plain_http(parts.scheme, settings),
        **settings.pop("client_options", {}),
    }
    retry_config = {**_RETRY_CONFIG, **settings.pop("retry_config", {})}
    config = {_FSSPEC_NAMES.get(name, name): value for name, value in settings.items()}
    # obstore.store.from_url would take some https:// addresses for S3 or Azure and
    # look for credentials that a public server does not need.
    is_http = parts.scheme.lower() in ("http", "https")
    make: Any = obstores.HTTPStore if is_http else obstores.from_url
    try:
        store = make(
            url, client_options=client_options, retry_config=retry_config, **config
        )
    except (BaseError, ValueError, TypeError) as error:
        raise StoreError(
            f"cannot open {parts.scheme}://{parts.hostname or ''}{parts.path}: "
            f"{str(error).strip().splitlines()[0]}",
            hint="check the URL and the names in storage_options",
        ) from error
    return RemoteStore(store, url.rstrip("/"))


def _uses_plain_http(scheme: str, settings: Mapping[str, Any]) -> bool:
    """Whether the user asked for a server without TLS."""
    endpoint = (
        settings.get("endpoint")
        or settings.get("endpoint_url")
        or settings.get("aws_endpoint")
        or os.environ.get("AWS_ENDPOINT_URL")
        or os.environ.get("AWS_ENDPOINT")
        or ""
    )
    return scheme.lower() == "http" or str(endpoint).lower().startswith("http://")
