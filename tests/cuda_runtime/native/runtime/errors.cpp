// CUDA Runtime API, section "Error Handling".
#include "errors.h"

#include "settings.h"

namespace {

thread_local cudaError_t last_error = cudaSuccess;

struct Description {
  cudaError_t error;
  const char* name;
  const char* text;
};

#define DESCRIBED(error, text) {error, #error, text}

// The texts are those that users know from PyTorch's messages.
const Description DESCRIPTIONS[] = {
    DESCRIBED(cudaSuccess, "no error"),
    DESCRIBED(cudaErrorInvalidValue, "invalid argument"),
    DESCRIBED(cudaErrorMemoryAllocation, "out of memory"),
    DESCRIBED(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    DESCRIBED(cudaErrorInvalidSymbol, "invalid device symbol"),
    DESCRIBED(cudaErrorInvalidDeviceFunction, "invalid device function"),
    DESCRIBED(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    DESCRIBED(cudaErrorInvalidDevice, "invalid device ordinal"),
    DESCRIBED(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    DESCRIBED(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
    DESCRIBED(cudaErrorNotReady, "device not ready"),
    DESCRIBED(cudaErrorNotSupported, "operation not supported"),
    DESCRIBED(cudaErrorHostMemoryNotRegistered,
              "pointer does not correspond to a registered memory region"),
    DESCRIBED(cudaErrorStreamCaptureUnsupported,
              "operation not permitted when stream is capturing"),
    DESCRIBED(cudaErrorStreamCaptureInvalidated,
              "operation failed due to a previous error during capture"),
    DESCRIBED(cudaErrorStreamCaptureMerge,
              "operation would result in a merge of separate capture sequences"),
    DESCRIBED(cudaErrorStreamCaptureUnmatched,
              "capture was not ended in the same stream as it began"),
    DESCRIBED(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    DESCRIBED(cudaErrorStreamCaptureIsolation,
              "dependency created on uncaptured work in another stream"),
    DESCRIBED(cudaErrorStreamCaptureImplicit,
              "operation would make the legacy stream depend on a capturing blocking stream"),
    DESCRIBED(cudaErrorCapturedEvent,
              "operation not permitted on an event last recorded in a capturing stream"),
    DESCRIBED(cudaErrorStreamCaptureWrongThread,
              "attempt to terminate a thread-local capture sequence from another thread"),
};

const Description* description(cudaError_t error) {
  for (const auto& each : DESCRIPTIONS)
    if (each.error == error) return &each;
  return nullptr;
}

}  // namespace

cudaError_t standin::remembered(cudaError_t error, const char* function) {
  if (error == cudaSuccess) return error;
  if (error != cudaErrorNotReady) trace("%s: %s", function, cudaGetErrorName(error));
  last_error = error;
  return error;
}

extern "C" {

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() { return last_error; }

const char* cudaGetErrorName(cudaError_t error) {
  const Description* known = description(error);
  return known ? known->name : "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  const Description* known = description(error);
  return known ? known->text : "unrecognized error code";
}

}  // extern "C"
