"""Coverage-guided fuzzing: targets, what mutates their inputs, and how they are run.

    python tests/fuzz TARGET --runs N

`docs/fuzzing.md` lists the targets. A target's module has

* ``NAME``;
* ``seeds()``: valid inputs to start from;
* ``check(data)``: True if the input was accepted, False if it was refused as it should
  be; anything raised is a finding;
* maybe ``mutate(data, rng)``: a mutation that knows the input's format;
* maybe ``ROOM_NBYTES``: how far allocations may go beyond what the process had before;
* maybe ``DICTIONARY``: byte strings that the fuzzer may splice in.
"""
