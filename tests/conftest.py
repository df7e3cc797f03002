"""Hypothesis profiles, and fixtures that several files share.

`./dev test` takes the profile `ci`, `./dev test-oldest` `quick`.
"""

from __future__ import annotations

import gc
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fused_cases import Seen
    from gpushard.stores.http.store import HttpStore
    from range_server import RangeServer

# No deadline: runners share their cores, so a slow example says nothing.
settings.register_profile(
    "explore",
    deadline=None,
    max_examples=1000,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
# The lanes draw what they drew before: their verdict is about the commit, not about
# luck. New examples are drawn by `./dev explore`.
settings.register_profile(
    "ci", parent=settings.get_profile("explore"), max_examples=20, derandomize=True
)
settings.register_profile("quick", parent=settings.get_profile("ci"), max_examples=10)
settings.load_profile("quick")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RangeServer]:
    """An HTTP server on loopback that has one object, the one of `stored_object`."""
    from range_server import RangeServer
    from stored_object import write_object

    with RangeServer(write_object(tmp_path)) as running:
        yield running


@pytest.fixture
def store(server: RangeServer) -> HttpStore:
    """The store behind that server."""
    from gpushard.options import DEFAULT
    from gpushard.stores.http.settings import settings_of
    from gpushard.stores.http.store import HttpStore

    settings = settings_of({}, DEFAULT, allows_http=True)
    return HttpStore(server.url, settings, DEFAULT)


@pytest.fixture(scope="module")
def settled() -> Iterator[None]:
    """Files settle as soon as they are written: indexes are kept without waiting."""
    from gpushard.stores.local import handles

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handles, "_SETTLED_NS", 0)
        yield


@pytest.fixture
def device_begins_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device reads small selections, too, as if it took no time to begin."""
    from gpushard.device_reading import by_host

    monkeypatch.setattr(by_host, "_DEVICE_READ_S", 0.0)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Who decodes in the reads of a test: the compiled loops, or Python."""
    from fused_cases import watch_sinks

    return watch_sinks(monkeypatch)


@pytest.fixture(params=["whole", "requests", "short", "one call"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way in which the compiled loops read local files; see `take_way`."""
    from fused_cases import take_way

    return take_way(monkeypatch, request.param)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each read of a part of one inner chunk was taken by the shortest way."""
    from gpushard.fused.short.single import SingleReader

    found: list[bool] = []
    plain = SingleReader.read

    def read(*args: Any) -> Any:
        result = plain(*args)
        found.append(result is not None)
        return result

    monkeypatch.setattr(SingleReader, "read", read)
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # What takes a minute begins first: at the end the other processes would wait.
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection() -> None:
    # Nothing of what is imported and collected goes again.
    gc.disable()


def pytest_collection_finish() -> None:
    # Thousands of tests and all modules outlive every test: the collector, which runs
    # while they do, need not look at them each time.
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _zarr_takes_no_task_for_each_chunk() -> None:
    """What tests have zarr write takes a third of the time that it takes by default."""
    import zarr

    from zarr_oracle import WITHOUT_TASKS

    zarr.config.set(WITHOUT_TASKS)


@pytest.fixture(scope="module", autouse=True)
def _what_lives_on_is_frozen() -> None:
    """Freeze what earlier files have imported and kept, too.

    In a process that has run thousands of tests a collection takes half a second
    otherwise, and dozens of tests ask for one each. Benchmarks thaw everything.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def no_pauses(monkeypatch) -> None:
    """Let a request that is repeated after a pause fail."""
    from gpushard.stores import patience

    def sleep(seconds: float) -> None:
        raise AssertionError(f"a pause of {seconds} s")

    clock = SimpleNamespace(sleep=sleep, monotonic=time.monotonic)
    monkeypatch.setattr(patience, "time", clock)
