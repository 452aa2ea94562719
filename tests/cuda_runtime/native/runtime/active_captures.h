// The captures that have begun and not ended.
#pragma once
#include <vector>

#include "streams.h"

namespace standin {
std::vector<CapturePointer>& active_captures();
}
