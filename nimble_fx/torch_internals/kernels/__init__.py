"""Libraries and compilers of kernels: cuDNN, oneDNN, Inductor; operators that are kept whole."""
