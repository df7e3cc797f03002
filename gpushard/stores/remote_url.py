"""URL -> store of a web server or an object store, with limits on each wait."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import SplitResult, urlsplit

from gpushard.arguments import instance
from gpushard.errors import StoreError, UnsupportedError
from gpushard.options import DEFAULT, Options
from gpushard.stores.failures import first_line_of, without_credentials
from gpushard.stores.http.connecting import origin_of
from gpushard.stores.http.settings import settings_of
from gpushard.stores.http.store import HttpStore
from gpushard.stores.patience import usual_repeats
from gpushard.stores.ranged import RangedStore

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
    "region_name": "region",
    "requester_pays": "request_payer",
}
# Settings of the client that obstore, at the top level, panics about. Others who read
# through the same library take them there.
_OF_CLIENT = {
    "aws_allow_http": "allow_http",
    **{
        name: name
        for name in (
            "allow_http",
            "allow_invalid_certificates",
            "connect_timeout",
            "default_content_type",
            "http1_only",
            "http2_keep_alive_interval",
            "http2_keep_alive_timeout",
            "http2_keep_alive_while_idle",
            "http2_only",
            "pool_idle_timeout",
            "pool_max_idle_per_host",
            "proxy_ca_certificate",
            "proxy_excludes",
            "proxy_url",
            "randomize_addresses",
            "read_timeout",
            "timeout",
            "user_agent",
        )
    },
}


def open_url(
    url: str, storage_options: Mapping[str, Any], options: Options = DEFAULT
) -> RangedStore:
    """Store whose root is `url`.

    Parameters
    ----------
    url
        ``http(s)://``, ``s3://``, ``gs://`` or ``az://``. The usual environment
        variables (``AWS_*``...) provide settings that `storage_options` leave open.
    storage_options
        obstore's configuration for this kind of store, plus `client_options`,
        `retry_config` and `credential_provider`. fsspec's names `anon`, `key`,
        `secret`, `token`, `endpoint_url`, `requester_pays` and `headers` (of every
        request) also work, and s3fs's `client_kwargs`.
        Web servers have `client_options`, `retry_config` and `headers`.
        `forbidden_is_missing`: take the status 403 for a missing object, because S3
        answers so to callers that may not list.
    options
        `patience_s` and `min_nbytes_per_s` say when to give up on a server.

    Raises
    ------
    UnsupportedError
        The URL is malformed or has a query, or needs obstore, which is not installed.
    StoreError
        The URL or a setting is refused.
    """
    parts = _parts(url)
    # s3fs passes these on to botocore.
    passed_on = storage_options.get("client_kwargs") or {}
    settings = {**instance(passed_on, "client_kwargs", Mapping), **storage_options}
    settings.pop("client_kwargs", None)
    forbidden_is_missing = bool(settings.pop("forbidden_is_missing", False))
    if parts.scheme.lower() in ("http", "https"):
        allows_http = parts.scheme.lower() == "http"
        web_settings = settings_of(settings, options, allows_http=allows_http)
        make_store = partial(HttpStore, url, web_settings)
    else:
        from gpushard.stores.remote import RemoteStore

        object_store = _object_store(url, parts.scheme, settings, options.patience_s)
        make_store = partial(RemoteStore, object_store, url.rstrip("/"))
    return make_store(options=options, forbidden_is_missing=forbidden_is_missing)


def store_of(store: Any, options: Options = DEFAULT) -> RangedStore:
    """Reader for an obstore store that the caller made.

    A web server is read by gpushard's own client, with the settings of the store.
    """
    if type(store).__name__ != "HTTPStore":
        from gpushard.stores.remote import RemoteStore

        return RemoteStore(store, options=options)
    given = {"client_options": store.client_options, "retry_config": store.retry_config}
    return open_url(store.url, given, options)


def obstore_of(store: HttpStore) -> Any:
    """Store of obstore for the same web server, for others than gpushard."""
    try:
        from obstore.store import HTTPStore
    except ImportError as error:
        raise UnsupportedError(
            "others read web servers through obstore, which is not installed",
            hint="run: pip install 'gpushard[remote]'",
        ) from error
    settings = store.settings
    client_options: dict[str, Any] = {
        "default_headers": dict(settings.headers),
        "allow_http": settings.allows_http,
        "allow_invalid_certificates": not settings.checks_certificates,
        "root_certificate": settings.root_certificates,
        "proxy_url": settings.proxy_url,
        "proxy_excludes": settings.proxy_excludes or None,
    }
    options: Any = {
        name: value for name, value in client_options.items() if value is not None
    }
    return HTTPStore(store.url, client_options=options)


def _object_store(
    url: str, scheme: str, settings: dict[str, Any], patience_s: float
) -> Any:
    """Store of obstore for a URL."""
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError as error:
        raise UnsupportedError(
            f"reading {scheme}:// URLs needs obstore",
            hint="run: pip install 'gpushard[remote]'",
        ) from error
    limits = _limits(patience_s, settings)
    config = {_FSSPEC_NAMES.get(name, name): value for name, value in settings.items()}
    try:
        return from_url(url, **limits, **config)  # type: ignore[no-matching-overload]
    except (BaseError, ValueError, TypeError) as error:
        raise StoreError(
            f"cannot open {without_credentials(url)}: {first_line_of(error)}",
            hint="check the URL and the names in storage_options",
        ) from error


def _parts(url: str) -> SplitResult:
    """Parts of a URL, which must be able to name a store's root."""
    try:
        parts = urlsplit(url)
        if parts.scheme.lower() in ("http", "https"):
            origin_of(url)
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


def _limits(patience_s: float, settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Settings of obstore's client and of its retries; `settings` may change them."""
    read_limit, repeats = f"{patience_s / 3:g}s", usual_repeats(patience_s)
    client_options: dict[str, Any] = {
        **_CLIENT_OPTIONS,
        "connect_timeout": read_limit,
        "read_timeout": read_limit,
        "allow_http": _uses_plain_http(settings),
        **{own: settings.pop(n) for n, own in _OF_CLIENT.items() if n in settings},
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
            "max_retries": repeats.n_most,
            "retry_timeout": timedelta(seconds=repeats.lost_limit_s),
            **settings.pop("retry_config", {}),
        },
    }


def _uses_plain_http(settings: Mapping[str, Any]) -> bool:
    """Whether the user chose a server without TLS."""
    endpoint = (
        settings.get("endpoint")
        or settings.get("endpoint_url")
        or settings.get("aws_endpoint")
        or os.environ.get("AWS_ENDPOINT_URL")
        or os.environ.get("AWS_ENDPOINT")
        or ""
    )
    return str(endpoint).lower().startswith("http://")
