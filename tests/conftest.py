"""Hypothesis profiles; `./dev test` takes `ci`, `./dev test-oldest` takes `quick`."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# No deadline: runners share their cores, so a slow example says nothing.
settings.register_profile(
    "quick",
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
# derandomize would show the same examples for ever; print_blob makes any failure
# reproducible elsewhere instead.
settings.register_profile(
    "ci",
    parent=settings.get_profile("quick"),
    max_examples=500,
    print_blob=True,
)
settings.load_profile("quick")
