"""An engine whose loop is a process of its own, and the server's side of that process."""
