"""`gpushard doctor`: what is installed here, and what a read would use of it."""

from __future__ import annotations

from typing import Any

from gpushard.cli.failures import failures_in_a_sentence
from gpushard.cli.output import (
    AsJson,
    Debug,
    print_json,
    print_table,
)


def doctor(as_json: AsJson = False, debug: Debug = False) -> None:
    """Tell what is installed here, and which device reads would take, and why."""
    with failures_in_a_sentence(debug=debug, as_json=as_json):
        from gpushard.cli.diagnosis import diagnose

        facts = diagnose()
        if as_json:
            print_json(facts)
        else:
            print_table(_rows(facts))


def _rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, value in facts.items():
        if isinstance(value, dict):
            rows += [(f"{name} {key}", _text(value[key])) for key in value]
        else:
            rows.append((name, _text(value)))
    return rows


def _text(value: Any) -> str:
    if value is None:
        return "not installed"
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
