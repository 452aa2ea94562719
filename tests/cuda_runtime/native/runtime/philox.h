// What kernels that draw random numbers were given.
#pragma once
#include <string>

namespace standin {

// The position of the kernel's parameter that begins with an at::PhiloxCudaState, by its demangled
// name; -1 if none. It is one of that type, or a lambda of a function that takes one, which captures
// it first.
int philox_parameter(const std::string& kernel);

// Remembers, for this thread, the state that a launch was given.
void note_philox(const void* state);

}  // namespace standin
