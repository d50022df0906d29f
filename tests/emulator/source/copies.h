#pragma once
#include <cuda_runtime_api.h>

#include "streams.h"

namespace card {

// A copy between any two places, as the documentation of cudaMemcpyAsync and "API synchronization behavior" of the CUDA
// runtime say: from pinned memory it is asynchronous; a pageable source is staged before the call returns; into
// pageable memory the call returns when all is there.
cudaError_t copy(void* to, const void* from, std::size_t bytes, Stream* stream, bool asynchronous);
cudaError_t fill(void* start, int value, std::size_t bytes, Stream* stream);

}  // namespace card
