"""What a GPU host is asked, in one command: `python -m benchmarks.gpu`.

It runs unattended, in stages, the most doubtful first:

    tests      `pytest -m gpu`, a test function at a time
    sanitizer  compute-sanitizer over every kernel, by whole reads of small arrays
    probes     questions that only a GPU answers, each in a process of its own
    ceilings   copies, storage, and the vendor's decoders alone
    kernels    each launch of a batch alone, replayed
    whole      reads from the file to device memory
    peers      what others take for the same arrays

Each row is written to the result file as soon as it is there. What stands in the file
is not measured again, so that the command is repeated until nothing is left to do; an
invocation ends when its budget is spent.
"""
