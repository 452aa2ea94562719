// What kernels that draw random numbers were given.
#pragma once
#include <string>

namespace standin {

// The position of a kernel's parameter of type at::PhiloxCudaState, by its name; -1 if none.
int philox_parameter(const std::string& kernel);

// Remembers, for this thread, the state that a launch was given.
void note_philox(const void* state);

}  // namespace standin
