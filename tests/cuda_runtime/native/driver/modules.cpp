// CUDA Driver API, section "Module Management": cubins, such as Triton's.
#include "modules.h"

#include <fstream>
#include <iterator>
#include <mutex>
#include <vector>

namespace {

enum Error { INVALID_IMAGE = 200, FILE_NOT_FOUND = 301, NOT_FOUND = 500 };  // of CUresult

struct Module {
  std::string image;
  standin::Kernels kernels;
  bool is_unloaded = false;
};

std::mutex mutex;

std::vector<const standin::Kernel*>& numbered() {
  static auto* all = new std::vector<const standin::Kernel*>;
  return *all;
}

int load(Module** module, std::string image) {
  if (!standin::is_elf(image)) return INVALID_IMAGE;
  *module = new Module{std::move(image), {}};
  (*module)->kernels = standin::read_kernels((*module)->image);
  return 0;
}

}  // namespace

const standin::Kernel& standin::kernel_of(long number) {
  std::lock_guard<std::mutex> guard(mutex);
  return *numbered().at(number);
}

extern "C" {

int cuModuleLoadData(Module** module, const void* image) {
  const auto* bytes = static_cast<const char*>(image);
  return load(module, std::string(bytes, standin::elf_size(bytes)));
}

int cuModuleLoadDataEx(Module** module, const void* image, unsigned, int*, void**) {
  return cuModuleLoadData(module, image);
}

int cuModuleLoad(Module** module, const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return FILE_NOT_FOUND;
  return load(module, std::string(std::istreambuf_iterator<char>(file), {}));
}

// It stays in memory: a launch from it may be pending.
int cuModuleUnload(Module* module) {
  module->is_unloaded = true;
  return 0;
}

int cuModuleGetFunction(standin::Kernel** kernel, Module* module, const char* name) {
  std::lock_guard<std::mutex> guard(mutex);
  const auto found = module->kernels.find(name);
  if (found == module->kernels.end()) return NOT_FOUND;
  *kernel = &found->second;
  (*kernel)->image = &module->image;
  (*kernel)->is_unloaded = &module->is_unloaded;
  (*kernel)->number = numbered().size();
  numbered().push_back(*kernel);
  return 0;
}

// For Python: a kernel's name, the image that it is from, and where its parameters are.
const char* standin_kernel_name(long number) { return standin::kernel_of(number).name.c_str(); }

long standin_kernel_image(long number, const void** image) {
  const auto& found = *standin::kernel_of(number).image;
  *image = found.data();
  return found.size();
}

long standin_kernel_parameters(long number, int* offsets, int* sizes, long room) {
  long n = 0;
  for (const auto& [position, parameter] : standin::kernel_of(number).parameters) {
    if (n < room) {
      offsets[n] = parameter.offset;
      sizes[n] = parameter.size;
    }
    ++n;
  }
  return n;
}

}  // extern "C"
