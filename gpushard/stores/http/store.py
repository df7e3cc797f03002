"""Objects behind a web server."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gpushard.options import Options
from gpushard.stores.base import NETWORK_COSTS
from gpushard.stores.failures import without_credentials
from gpushard.stores.http.client import HttpClient
from gpushard.stores.http.settings import HttpSettings
from gpushard.stores.patience import Patience
from gpushard.stores.ranged import RangedStore


class HttpStore(RangedStore):
    """Read access to the objects of a web server.

    Connections are kept for further requests, in each process its own: a forked process
    opens new ones.

    Parameters
    ----------
    url
        Address of the root.
    settings
        How to talk to the server.
    options
        `memory_limit` limits whole objects from servers without ranges.
    forbidden_is_missing
        Whether the status 403 means that there is no such object.

    Attributes
    ----------
    settings
        As passed.

    Raises
    ------
    ValueError
        The URL names no web server.
    """

    def __init__(
        self,
        url: str,
        settings: HttpSettings,
        options: Options,
        *,
        forbidden_is_missing: bool = False,
    ) -> None:
        self.settings = settings
        url = without_credentials(url.rstrip("/"))
        super().__init__(
            HttpClient(url, settings),
            url,
            NETWORK_COSTS,
            Patience(settings.wait_limits, settings.repeats),
            options,
            forbidden_is_missing=forbidden_is_missing,
        )

    def __reduce__(self) -> tuple[Callable[..., HttpStore], Any, Any]:
        make = partial(HttpStore, forbidden_is_missing=self._forbidden_is_missing)
        state = {"is_read_only": self.is_read_only}
        return make, (self.url, self.settings, self._options), state
