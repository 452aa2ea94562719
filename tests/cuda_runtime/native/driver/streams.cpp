// CUDA Driver API, section "Stream Management".
#include <cuda_runtime_api.h>

extern "C" int cuStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return cudaStreamIsCapturing(stream, status);
}
