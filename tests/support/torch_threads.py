"""PyTorch with one thread, for as long as a test needs it."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Gives PyTorch one thread, and at the end as many as it had."""
    import torch  # only now, because not everything that imports this module needs it

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
