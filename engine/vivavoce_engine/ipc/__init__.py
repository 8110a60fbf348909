"""Child processes that run modules of this package, and pipes to them."""
