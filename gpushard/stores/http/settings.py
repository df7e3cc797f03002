"""Settings of the connection to a web server, with obstore's names for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from gpushard.errors import StoreError, UnsupportedError
from gpushard.options import Options
from gpushard.stores.http.wire import TOKEN
from gpushard.stores.patience import Repeats, WaitLimits, usual_repeats

# Bodies must not be encoded, because byte ranges of an encoded body are not ranges of
# the object.
_IDENTITY = {"Accept-Encoding": "identity"}
# Set by each request, or by the connection.
_OWN_HEADERS = frozenset(
    (
        "accept-encoding",
        "connection",
        "content-length",
        "if-match",
        "if-range",
        "range",
        "transfer-encoding",
    )
)
_NOT_IN_TEXT = re.compile(r"[^\t\x20-\x7e\x80-\xff]")
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*")
_UNITS = {
    **dict.fromkeys(("nsec", "ns"), 1e-9),
    **dict.fromkeys(("usec", "us"), 1e-6),
    **dict.fromkeys(("msec", "ms"), 1e-3),
    **dict.fromkeys(("seconds", "second", "sec", "s"), 1.0),
    **dict.fromkeys(("minutes", "minute", "min", "m"), 60.0),
    **dict.fromkeys(("hours", "hour", "hr", "h"), 3600.0),
    **dict.fromkeys(("days", "day", "d"), 86400.0),
}
# A year: the clocks of systems do not count as far as a timedelta does.
_MOST_S = 365 * 86_400.0
# 64 threads of a pool send requests, and so do readers who find all of these busy. If
# fewer connections were kept, each large read would make some anew.
_MOST_IDLE = 96
# What concerns HTTP/2, uploads, and the order of a host's addresses.
_WITHOUT_EFFECT = frozenset(
    (
        "default_content_type",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "randomize_addresses",
    )
)


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """How to talk to a web server.

    Attributes
    ----------
    wait_limits
        How long the server may take.
    repeats
        When a request is repeated.
    headers
        Names and values of each request's headers, credentials included.
    connect_s, pause_s, most_s
        Seconds for a connection, without a byte, and for an answer.
    idle_s, most_idle
        Seconds that a connection without a request is kept, and how many are.
    allows_http
        Whether requests may go over connections without TLS.
    checks_certificates
        Whether certificates are validated.
    root_certificates
        Certificates in PEM to trust besides those of the system.
    proxy_url, proxy_excludes
        Proxy, and hosts without it; None for those of the environment.
    """

    wait_limits: WaitLimits
    repeats: Repeats
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    connect_s: float
    pause_s: float
    most_s: float
    idle_s: float
    most_idle: int
    allows_http: bool
    checks_certificates: bool
    root_certificates: str | None
    proxy_url: str | None = field(repr=False)
    proxy_excludes: str


def settings_of(
    storage_options: Mapping[str, Any], options: Options, *, allows_http: bool
) -> HttpSettings:
    """Settings that a user chose, or their defaults.

    Parameters
    ----------
    storage_options
        `client_options` and `retry_config`, with obstore's names; `headers`.
    allows_http
        Default of `allow_http`.

    Raises
    ------
    StoreError
        A setting is unknown, or has an impossible value.
    UnsupportedError
        A setting asks for what this client does not have.
    """
    given = dict(storage_options)
    client = _NamedSettings("client_options", given.pop("client_options", None) or {})
    retry = _NamedSettings("retry_config", given.pop("retry_config", None) or {})
    headers = {
        **client.mapping("default_headers"),
        **_NamedSettings("storage_options", given).mapping("headers"),
    }
    given.pop("headers", None)
    agent = client.text("user_agent")
    _refuse_left("storage_options", given)
    wait_limits = WaitLimits(options.patience_s, options.min_nbytes_per_s)
    if client.flag("http2_only", default=False):
        raise _unsupported("http2_only")
    if client.take("proxy_ca_certificate") is not None:
        raise _unsupported("proxy_ca_certificate")
    for name in _WITHOUT_EFFECT:
        client.take(name)
    settings = HttpSettings(
        wait_limits=wait_limits,
        repeats=_repeats(retry, options.patience_s),
        headers=_headers(headers, agent),
        connect_s=client.seconds("connect_timeout", wait_limits.pause_s),
        pause_s=client.seconds("read_timeout", wait_limits.pause_s),
        most_s=client.seconds("timeout", 300.0),
        idle_s=client.seconds("pool_idle_timeout", 60.0),
        most_idle=client.number("pool_max_idle_per_host", _MOST_IDLE, int),
        allows_http=client.flag("allow_http", default=allows_http),
        checks_certificates=not client.flag(
            "allow_invalid_certificates", default=False
        ),
        root_certificates=_certificates(client),
        proxy_url=client.text("proxy_url"),
        proxy_excludes=client.text("proxy_excludes") or "",
    )
    _refuse_left("client_options", client.left)
    _refuse_left("retry_config", retry.left)
    return settings


def _repeats(retry: _NamedSettings, patience_s: float) -> Repeats:
    """When requests are repeated: as usual, but for what the user set."""
    backoff = _NamedSettings("backoff", retry.take("backoff") or {})
    usual = usual_repeats(patience_s)
    repeats = Repeats(
        first_pause_s=backoff.seconds("init_backoff", usual.first_pause_s),
        pause_factor=backoff.number("base", usual.pause_factor, float),
        longest_pause_s=backoff.seconds("max_backoff", usual.longest_pause_s),
        n_most=retry.number("max_retries", usual.n_most, int),
        lost_limit_s=retry.seconds("retry_timeout", usual.lost_limit_s),
    )
    _refuse_left("backoff", backoff.left)
    return repeats


def _certificates(client: _NamedSettings) -> str | None:
    """Certificates in PEM, which are read once to see that they are some."""
    pem = client.text("root_certificate")
    if pem is not None:
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(cadata=pem)
        except (ssl.SSLError, TypeError, ValueError) as error:
            raise client.impossible("root_certificate", error, "PEM") from error
    return pem


class _NamedSettings:
    """Settings that were given under one name, and those not taken yet."""

    def __init__(self, name: str, given: Any) -> None:
        self._name = name
        if not isinstance(given, Mapping):
            raise self.impossible(name, given, "a mapping")
        self.left = dict(given)

    def take(self, name: str) -> Any:
        return self.left.pop(name, None)

    def mapping(self, name: str) -> Mapping[Any, Any]:
        value = self.take(name)
        if isinstance(value or {}, Mapping):
            return value or {}
        raise self.impossible(name, value, "a mapping")

    def text(self, name: str) -> str | None:
        value = self.take(name)
        text = value.decode("latin-1") if isinstance(value, bytes) else value
        if text is None or isinstance(text, str):
            return text
        raise self.impossible(name, value, "text")

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.take(name)
        if isinstance(value, str):  # as environment variables have it
            value = {"true": True, "1": True, "false": False, "0": False}.get(
                value.lower(), value
            )
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.impossible(name, value, "True or False")
        return value

    def number(self, name: str, default: Any, kind: Callable[[Any], Any]) -> Any:
        value = self.take(name)
        try:
            number = default if value is None else kind(value)
        except (OverflowError, TypeError, ValueError):
            number = -1
        if not number >= 0:
            raise self.impossible(name, value, "a number that is not negative")
        return number

    def seconds(self, name: str, default: float) -> float:
        value = self.take(name)
        if value is None:
            return default
        found = (
            value.total_seconds()
            if isinstance(value, timedelta)
            else _parsed_seconds(value)
        )
        if found is None or found < 0:
            raise self.impossible(name, value, 'a timedelta, or text such as "30s"')
        return min(found, _MOST_S)

    def impossible(self, name: str, value: Any, expected: str) -> StoreError:
        return StoreError(
            f"the setting {name} has an impossible value",
            expected=expected,
            got=repr(value),
            hint=f"correct it in {self._name}",
        )


def _parsed_seconds(value: Any) -> float | None:
    """Seconds of a text like "1m 30s"; None if it is no such text."""
    text = str(value).strip()
    parts = [(float(number), unit) for number, unit in _DURATION.findall(text)]
    if _DURATION.sub("", text) or not parts or any(u not in _UNITS for _, u in parts):
        return None
    return sum(number * _UNITS[unit] for number, unit in parts)


def _headers(
    named: Mapping[str, str | bytes], agent: str | None
) -> tuple[tuple[str, str], ...]:
    """Headers of each request, by their names."""
    headers: dict[str, str] = {}
    for name, value in {"User-Agent": agent or "gpushard", **named}.items():
        text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
        is_named = isinstance(name, str) and TOKEN.fullmatch(name)
        if not is_named or _NOT_IN_TEXT.search(text):
            raise StoreError(
                f"the header {name!r} cannot be sent",
                expected="a name of RFC 9110, and a value without line ends",
                hint="correct it in storage_options",
            )
        if name.lower() in _OWN_HEADERS:
            continue
        for same in [one for one in headers if one.lower() == name.lower()]:
            del headers[same]
        headers[name] = text
    return tuple((headers | _IDENTITY).items())


def _refuse_left(where: str, left: Mapping[str, Any]) -> None:
    if left:
        raise StoreError(
            f"a web server has no setting {', '.join(map(repr, sorted(left)))}",
            hint=f"check the names in {where}",
        )


def _unsupported(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"the setting {name} has no counterpart in gpushard's client of web servers",
        hint="leave it out",
    )
