// Accesses that nothing orders: a shadow of the memory that knows, of every range, the last write and the reads since.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "streams.h"

namespace card {

extern std::size_t races_found;
extern std::vector<std::string> race_texts;  // the first of them

// `stream` reads or writes `size` bytes; a race unless what was done there before is ordered before it.
void access(Stream* stream, const void* start, std::size_t size, bool writes, const std::string& what);
// As a write would, but leaves no trace: memory that is handed out or given back.
void require_quiet(Stream* stream, const void* start, std::size_t size, const std::string& what);
void forget(std::uintptr_t start, std::size_t size);
void forget_all();

}  // namespace card
