"""A small module of LLVM's, as the loops are a large one, and its object file."""

from __future__ import annotations

from llvmlite import binding

from gpushard.fused.code import compiling

# A constant table, a function that is called, and two of the C library's.
MODULE = """
@table = internal constant [4 x i64] [i64 3, i64 1, i64 4, i64 1]
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare ptr @memmove(ptr, ptr, i64)

define internal i64 @nth(i64 %n) noinline {
  %at = getelementptr [4 x i64], ptr @table, i64 0, i64 %n
  %value = load i64, ptr %at
  ret i64 %value
}

define i64 @run(ptr %words) {
  %n = load i64, ptr %words
  %found = call i64 @nth(i64 %n)
  %second = getelementptr i64, ptr %words, i64 1
  call void @llvm.memset.p0.i64(ptr %words, i8 9, i64 %n, i1 false)
  %moved = call ptr @memmove(ptr %second, ptr %words, i64 %n)
  ret i64 %found
}
"""


def object_of(assembly: str) -> bytes:
    """Object file of a module with a function ``run``."""
    binding.initialize_native_asmprinter()
    return compiling.object_of(compiling.Compiled(0, "run", assembly))
