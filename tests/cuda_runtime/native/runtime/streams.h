// Streams: what the next task on each comes after, and how work is put on one.
#pragma once
#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <vector>

#include "tasks.h"

namespace standin {
struct Capture;
using CapturePointer = std::shared_ptr<Capture>;
}  // namespace standin

struct CUgraphNode_st;

struct CUstream_st {
  int id = 0;
  int device = 0;
  int priority = 0;
  unsigned flags = 0;
  bool is_legacy = false;
  bool is_destroyed = false;
  standin::Tasks last;               // what its next task comes after
  standin::CapturePointer capture;   // that it takes part in
  std::vector<CUgraphNode_st*> captured_last;  // what its next node comes after

  // CUDA Runtime API, "Stream synchronization behavior": whether it and the legacy default stream
  // wait for each other.
  bool is_blocking() const { return !is_legacy && !(flags & cudaStreamNonBlocking); }
};

namespace standin {

// All streams ever made; they stay, so that handles in events and captures stay good.
const std::vector<CUstream_st*>& streams();

// The stream of a handle, which may be one of the names of default streams.
CUstream_st* resolved(cudaStream_t handle);

// What the stream's next task comes after, legacy streams included.
Tasks position(const CUstream_st* stream);

// Enqueues work on a stream, or adds it to the graph that the stream is captured into.
cudaError_t enqueue(cudaStream_t handle, std::string label, Body body, const char* function);

// Issues a task as the stream's next one, outside of any capture.
TaskPointer issue_on(CUstream_st* stream, std::string label, Body body);

}  // namespace standin
