"""Scripts that time the kernels, the engine and a server on a graphics card, with random weights of released shapes."""
