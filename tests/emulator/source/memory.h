// The card's memory: pages of the host's, counted against a capacity. Addresses are the host's own, so that the CPU's
// kernels can work on them; which memory an address belongs to is looked up.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>

#include "streams.h"

namespace card {

constexpr std::size_t GRANULE = 2 << 20;  // a card hands out pages of 2 MiB (cuMemGetAllocationGranularity)
constexpr std::size_t PAGE = 4096;        // of the host

inline std::size_t round_up(std::size_t size, std::size_t to) { return (size + to - 1) / to * to; }

using Ranges = std::map<std::uintptr_t, std::size_t>;  // start -> bytes

struct Memory {
  Ranges device, pinned;
  std::size_t used = 0, peak = 0, pinned_bytes = 0;
  std::size_t allocations = 0, refused = 0;

  bool is_device(const void* address) const;
  bool is_pinned(const void* address) const;
  std::size_t room() const;
  bool take(std::size_t bytes);  // counts bytes as used; false and a refusal where the card has not got them
  void give(std::size_t bytes);
};

extern Memory memory;

void* map_pages(std::size_t bytes);  // nullptr if the host has none left
void poison(Stream* stream, void* start, std::size_t bytes);

cudaError_t allocate(void** result, std::size_t bytes);
cudaError_t release(void* start);
cudaError_t allocate_pinned(void** result, std::size_t bytes);
cudaError_t release_pinned(void* start);
cudaError_t pin(void* start, std::size_t bytes);
cudaError_t unpin(void* start);

// The stream-ordered pool (cudaMallocAsync), which ComfyUI takes unless told otherwise.
struct Pool {
  std::map<std::uintptr_t, std::size_t> blocks;
  std::size_t used = 0, reserved = 0, used_high = 0, reserved_high = 0;
  bool grow(std::size_t bytes);
};

extern Pool pool;
cudaError_t allocate_in_order(void** result, std::size_t bytes, Stream* stream);
cudaError_t release_in_order(void* start, Stream* stream);
void trim(std::size_t keep);

}  // namespace card
