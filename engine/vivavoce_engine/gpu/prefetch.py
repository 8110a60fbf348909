"""Early requests for memory that a kernel reads later."""

# Triton reads the annotations of a kernel, so its pointers carry none.
# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def prefetch_rows(first_ptr, row_bytes, length_bytes, rows):
    """Asks the L2 cache for `rows` pieces of memory, `length_bytes` each, one every `row_bytes` from `first_ptr` on.

    Thread t of a program asks for piece t, so a program needs that many threads. No thread waits. Lengths are multiples
    of 16.
    """
    tl.inline_asm_elementwise(
        """{
        .reg .pred %inside;
        .reg .u32 %thread;
        .reg .u64 %at;
        mov.u32 %thread, %tid.x;
        setp.lt.u32 %inside, %thread, $4;
        mad.wide.u32 %at, %thread, $2, $1;
        @%inside cp.async.bulk.prefetch.L2.global [%at], $3;
        mov.u32 $0, 0;
        }""",
        "=r,l,r,r,r",
        [first_ptr.to(tl.int64), row_bytes, length_bytes, rows],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
