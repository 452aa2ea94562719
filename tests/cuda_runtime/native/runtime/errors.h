// The error that a call of the runtime returns, remembered for cudaGetLastError.
#pragma once
#include <cuda_runtime_api.h>

namespace standin {

// Remembers an error as the thread's last one, and returns it.
cudaError_t remembered(cudaError_t error, const char* function);

}  // namespace standin

#define STANDIN_RETURN(error) return standin::remembered((error), __func__)
#define STANDIN_RETURN_IF(error) \
  if (const cudaError_t found = (error)) return standin::remembered(found, __func__)
