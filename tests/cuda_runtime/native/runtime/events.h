// Events: a point of a stream, or of a capture.
#pragma once
#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "streams.h"

struct CUevent_st {
  unsigned flags = 0;
  standin::TaskPointer task;     // of the last record outside of a capture
  std::shared_ptr<double> time;  // in milliseconds, once that task has run
  standin::CapturePointer capture;  // of the last record, if in a capture
  std::vector<CUgraphNode_st*> captured;  // the nodes before it
};
