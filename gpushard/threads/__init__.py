"""Threads that read side by side, and what ends, interrupts or forks them."""
