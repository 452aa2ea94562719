// The current device of a thread.
#pragma once

namespace standin {
int current_device();
}
