"""Makes `python tests/fuzz` the command of this package."""

from __future__ import annotations

import sys
from pathlib import Path

# The tests import one another by bare name, as they do under pytest.
_TESTS = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(_TESTS), str(_TESTS.parent)]

from fuzz.command import main  # noqa: E402 - found on the path made above

if __name__ == "__main__":
    main()
