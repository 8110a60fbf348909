"""The runner of PyTorch modules, and its sampling: what a CPU uses, and the twin of gpu/."""
