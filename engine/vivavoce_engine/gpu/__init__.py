"""The models on a GPU: Triton kernels, and one CUDA graph for each batch size."""
