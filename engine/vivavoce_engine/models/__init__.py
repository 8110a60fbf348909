"""The networks as plain PyTorch: arithmetic alone. Sampling, scheduling, devices and files are elsewhere."""
