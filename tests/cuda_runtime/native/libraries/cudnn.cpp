// cuDNN: its version, which the build defines as the wheel's requirement. It computes nothing.
#include <cstddef>

extern "C" {

size_t cudnnGetVersion() { return CUDNN_MAJOR * 10000 + CUDNN_MINOR * 100 + CUDNN_PATCH; }

size_t cudnnGetCudartVersion() { return 13000; }

int cudnnGetProperty(int which, int* value) {
  *value = which == 0 ? CUDNN_MAJOR : which == 1 ? CUDNN_MINOR : CUDNN_PATCH;
  return 0;
}

}  // extern "C"
