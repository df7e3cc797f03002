"""The result file: rows as they come, and what is left to do."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.machine import commit, machine

Row = dict[str, Any]
MAX_ATTEMPTS = 3


class Record:
    """Rows and states of tasks, in a file that is whole at any time.

    Parameters
    ----------
    path
        The result file; an earlier one is taken up.
    log
        What is told on the way is appended there.
    is_emulated
        Whether a GPU is only emulated: no figure of such a file says anything.
    """

    def __init__(self, path: Path, log: Path, *, is_emulated: bool) -> None:
        self.path, self._log = path, log
        self.content: dict[str, Any] = {
            "emulated": is_emulated,
            "runs": [],
            "machine": machine(),
            "facts": {},
            "tasks": {},
            "rows": {},
        }
        if path.exists():
            self.content = json.loads(path.read_text(encoding="utf-8"))
        if self.content["emulated"] != is_emulated:
            message = f"{path} has rows of another kind of device"
            raise ValueError(message)
        self.content["runs"].append(
            {
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "commit": commit(),
            }
        )

    @property
    def rows(self) -> dict[str, Row]:
        """What was found, by the row's name."""
        return self.content["rows"]

    def put(self, row: Row) -> None:
        """Keep a row, by its ``id``, and write the file."""
        name = row.pop("id")
        self.rows[name] = row | {"emulated": self.content["emulated"]}
        self.tell(f"  {name}: {_short(row)}")
        self.flush()

    def put_facts(self, facts: Row) -> None:
        """Keep what is measured on: hardware, driver, versions."""
        self.content["facts"] |= facts
        self.flush()

    def is_done(self, task: str) -> bool:
        """Whether nothing of a task is left, or it failed too often."""
        state = self.content["tasks"].get(task, {})
        return state.get("is_done") or state.get("n_failed", 0) >= MAX_ATTEMPTS

    def n_failed(self, task: str) -> int:
        """How often it failed."""
        return self.content["tasks"].get(task, {}).get("n_failed", 0)

    def has_failed(self, task: str) -> bool:
        """Whether it failed, and has not come to its end since."""
        state = self.content["tasks"].get(task, {})
        return state.get("n_failed", 0) > 0 and not state["is_done"]

    def note(self, task: str, *, error: str, seconds: float, is_cut: bool) -> None:
        """Keep how a task ended: well if `error` is empty."""
        state = self.content["tasks"].setdefault(task, {"n_failed": 0, "seconds": 0.0})
        state["is_done"] = not error
        state["error"] = error
        state["n_failed"] += bool(error) and not is_cut
        state["seconds"] = round(state["seconds"] + seconds, 1)
        self.flush()

    def flush(self) -> None:
        """Write the file, whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_name(f"{self.path.name}.part")
        part.write_text(json.dumps(self.content, indent=1) + "\n", encoding="utf-8")
        part.replace(self.path)

    def tell(self, text: str) -> None:
        """Append a line to the log."""
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"{datetime.now(UTC):%H:%M:%S} {text}\n")


def _short(row: Row) -> str:
    text = json.dumps({k: v for k, v in row.items() if k != "output"})
    return text if len(text) < 400 else f"{text[:400]}..."
