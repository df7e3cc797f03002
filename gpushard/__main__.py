"""`python -m gpushard` is `gpushard`."""

from __future__ import annotations

from gpushard.cli import main

if __name__ == "__main__":
    main()
