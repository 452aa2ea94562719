// What may not be called during a stream capture, and what each such call does to it.
#include <vector>

#include "active_captures.h"
#include "capture.h"
#include "errors.h"
#include "events.h"
#include "lock.h"

namespace standin {
namespace {

thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

}  // namespace

void invalidate(const CapturePointer& capture, const char* function) {
  trace("capture %llu is invalidated by %s", capture->id, function);
  capture->is_invalid = true;
}

// CUDA Runtime API, cudaThreadExchangeStreamCaptureMode. Global: "If the local thread has an
// ongoing capture sequence that was not initiated with cudaStreamCaptureModeRelaxed ..., or if any
// other thread has a concurrent capture sequence initiated with cudaStreamCaptureModeGlobal, this
// thread is prohibited from potentially unsafe API calls." ThreadLocal: only the former. Relaxed:
// neither.
cudaError_t unsafe_call(const char* function) {
  if (thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  bool is_prohibited = false;
  for (const auto& capture : active_captures()) {
    if (capture->mode == cudaStreamCaptureModeRelaxed) continue;
    const bool is_own = capture->thread == std::this_thread::get_id();
    const bool are_global = thread_mode == cudaStreamCaptureModeGlobal &&
                            capture->mode == cudaStreamCaptureModeGlobal;
    if (!is_own && !are_global) continue;
    invalidate(capture, function);
    is_prohibited = true;
  }
  return is_prohibited ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

// CUDA C++ Programming Guide, "Stream Capture", "Prohibited and Unhandled Operations": "When any
// stream in the same context is being captured, and it was not created with
// cudaStreamNonBlocking, any attempted use of the legacy stream is invalid."
cudaError_t legacy_use(const CUstream_st* stream, const char* function) {
  if (!stream->is_legacy) return cudaSuccess;
  for (const auto* other : streams()) {
    if (!other->capture || !other->is_blocking() || other->device != stream->device) continue;
    invalidate(other->capture, function);
    return cudaErrorStreamCaptureImplicit;
  }
  return cudaSuccess;
}

// There: "It is invalid to synchronize or query the execution status of a stream which is being
// captured or a captured event, because they do not represent items scheduled for execution."
cudaError_t waiting_for_captured(const CUstream_st* stream, const char* function) {
  if (!stream->capture) return cudaSuccess;
  const bool was_invalid = stream->capture->is_invalid;
  invalidate(stream->capture, function);
  return was_invalid ? cudaErrorStreamCaptureInvalidated : cudaErrorStreamCaptureUnsupported;
}

// There: "It is also invalid to query the execution status of or synchronize a broader handle which
// encompasses an active stream capture, such as a device or context handle when any associated
// stream is in capture mode."
cudaError_t waiting_for_device(int device, const char* function) {
  if (const auto error = unsafe_call(function)) return error;
  for (const auto* stream : streams())
    if (stream->device == device)
      if (const auto error = waiting_for_captured(stream, function)) return error;
  return cudaSuccess;
}

// There: "It is invalid to merge two separate capture graphs by waiting on a captured event from a
// stream which is being captured and is associated with a different capture graph than the event."
// "Cross-stream Dependencies and Events": a stream that waits for a captured event joins its
// capture; the legacy stream cannot be captured.
cudaError_t wait_in_capture(CUstream_st* stream, cudaEvent_t event, const char* function) {
  const CapturePointer& capture = event->capture;
  if (stream->capture && stream->capture->is_invalid) return cudaErrorStreamCaptureInvalidated;
  if (capture->is_ended) return cudaErrorInvalidValue;  // as CUDA 13.0 on an H100
  if (capture->is_invalid) return cudaErrorStreamCaptureInvalidated;
  if (stream->is_legacy) {
    invalidate(capture, function);
    return cudaErrorStreamCaptureImplicit;
  }
  if (stream->capture && stream->capture != capture) {
    invalidate(stream->capture, function);
    invalidate(capture, function);
    return cudaErrorStreamCaptureMerge;
  }
  if (!stream->capture) trace("stream %d joins capture %llu", stream->id, capture->id);
  stream->capture = capture;
  join_nodes(stream->captured_last, event->captured);
  return cudaSuccess;
}

}  // namespace standin

extern "C" cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, standin::thread_mode);
  return cudaSuccess;
}
