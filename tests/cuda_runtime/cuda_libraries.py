"""CUDA's own functions, by ctypes: the stand-in's, or on a machine with a GPU NVIDIA's.

PyTorch has loaded the libraries before, from where it has them.
"""

import ctypes

driver = ctypes.CDLL("libcuda.so.1")
runtime = ctypes.CDLL("libcudart.so.13")
