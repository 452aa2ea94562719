// Stream capture, and what may not be called during one.
#pragma once
#include <cuda_runtime_api.h>

#include <string>
#include <thread>

#include "graphs.h"
#include "streams.h"

namespace standin {

struct Capture {
  unsigned long long id;
  cudaStreamCaptureMode mode;
  std::thread::id thread;  // that began it
  CUstream_st* origin;
  cudaGraph_t graph;
  bool is_invalid = false;
  bool is_ended = false;
};

// CUDA C++ Programming Guide, "Stream Capture", "Invalidation": "When an invalid operation is
// attempted during stream capture, any associated capture graphs are invalidated".
void invalidate(const CapturePointer& capture, const char* function);

// Adds a node after what the stream has captured.
cudaError_t add_captured(CUstream_st* stream, std::string label, Body body);

// Adds work that runs in the moment in which what the stream has captured is done. It is no node
// for the API, and nothing comes after it.
void add_immediate(CUstream_st* stream, std::string label, Body body);

// What is wrong with a "potentially unsafe API call" of this thread, which invalidates captures.
cudaError_t unsafe_call(const char* function);

// What is wrong with the use of a stream, if it is a legacy one.
cudaError_t legacy_use(const CUstream_st* stream, const char* function);

// What is wrong with waiting for a stream, or asking whether it is done, if it is captured.
cudaError_t waiting_for_captured(const CUstream_st* stream, const char* function);

// What is wrong with waiting for the whole device, if one of its streams is captured.
cudaError_t waiting_for_device(int device, const char* function);

// Makes a stream wait for an event of a capture, which it joins.
cudaError_t wait_in_capture(CUstream_st* stream, cudaEvent_t event, const char* function);

}  // namespace standin
