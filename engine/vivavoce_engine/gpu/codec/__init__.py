"""Code2Wav on a GPU: Triton kernels, channels last."""
