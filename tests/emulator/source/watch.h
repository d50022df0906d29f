// What operators.cpp and Python call: kernels that begin and end, memory that changes hands, counters.
#pragma once
#include <cstddef>

#include "clock.h"

extern "C" {

// A kernel on a stream reads these ranges; then it has written those. Between the two its work is done.
void emu_begin(void* stream, const char* name, int count, void** starts, std::size_t* sizes);
void emu_end(void* stream, const char* name, int count, void** starts, std::size_t* sizes, const card::Kernel* kernel);
// PyTorch's caching allocator hands a block out, or has it back.
void emu_alloc(void* stream, void* start, std::size_t size);
void emu_free(void* stream, void* start, std::size_t size);
int emu_is_device(const void* address);
int emu_shapes_alone();                   // whether products leave out their arithmetic
double emu_workspace();                   // what a convolution holds, times the bytes of input, weight and result
void emu_refuse_kernel(const char* name);  // an operator that cannot be emulated

const char* emu_stats();  // JSON
const char* emu_races();  // a line each
void emu_reset();
int emu_set(const char* key, double value);  // 0: there is no such setting
void emu_default_settings();                  // as the environment variables say
}

namespace card {

struct Copies {
  std::size_t count = 0, bytes = 0;
};

struct Counters {
  Copies from_pinned, from_pageable, to_pinned, to_pageable, on_device, memsets, to_device_async, to_host_async;
  std::size_t synchronisations = 0, kernels = 0, unknown_kernels = 0;
  double kernel_flops = 0, kernel_bytes = 0;
};

extern Counters counters;

}  // namespace card
