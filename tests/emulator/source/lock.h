// One lock for the whole card: the host's threads take turns, and a piece of work may call back into it.
#pragma once
#include <mutex>

namespace card {
extern std::recursive_mutex mutex;
using Lock = std::lock_guard<std::recursive_mutex>;
}  // namespace card
