// What the environment says: the order of work, and the device that is shown.
#pragma once
#include <cstddef>
#include <string>

namespace standin {

// eager: work runs when it is issued, in the order of issue.
// lazy: only when the host waits for it, and then what was issued last first, where it may.
// random: any order that dependencies allow, drawn from a seed.
enum class Mode { eager, lazy, random };

Mode mode_named(const std::string& name);  // an unknown name ends the process

int number_of_devices();       // STANDIN_DEVICES, 1
size_t memory_per_device();    // STANDIN_MEMORY in bytes, 8 GiB
int compute_capability();      // STANDIN_COMPUTE_CAPABILITY, 80
int multiprocessors();         // STANDIN_MULTIPROCESSORS, 8
bool is_traced();              // STANDIN_TRACE, 0
std::string mode_in_environment();  // STANDIN_MODE, eager
unsigned seed_in_environment();     // STANDIN_SEED, 1

// Writes a line to standard error, if STANDIN_TRACE is set.
void trace(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace standin
