// What is read from a cubin, an ELF file: its kernels, and where their parameters are.
#pragma once
#include <map>
#include <string>

namespace standin {

struct Parameter {
  int offset, size;
};

struct Kernel {
  std::string name;
  const std::string* image = nullptr;     // of its module
  const bool* is_unloaded = nullptr;      // its module
  long number = 0;                        // by which Python knows it
  int dynamic_shared = 48 << 10;
  int registers = 1;
  std::map<int, Parameter> parameters;    // by position
};

using Kernels = std::map<std::string, Kernel>;

bool is_elf(const std::string& image);
size_t elf_size(const char* image);
Kernels read_kernels(const std::string& image);

}  // namespace standin
