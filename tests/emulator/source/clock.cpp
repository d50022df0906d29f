#include "clock.h"

#include <algorithm>
#include <cmath>

namespace card {

Clock clock;

double Engine::reserve(double ready, double seconds, double issued) {
  while (!busy_.empty() && busy_.begin()->second <= issued) {
    last_ = busy_.begin()->second;
    busy_.erase(busy_.begin());
  }
  double start = ready;
  for (const auto& [from, to] : busy_) {
    if (from - start >= seconds) break;
    start = std::max(start, to);
  }
  if (seconds > 0) {
    auto [place, fresh] = busy_.emplace(start, start + seconds);
    // Neighbours without a gap become one, so that the list stays as short as there are gaps.
    auto after = std::next(place);
    if (after != busy_.end() && after->first <= place->second) {
      place->second = after->second;
      busy_.erase(after);
    }
    if (place != busy_.begin()) {
      auto before = std::prev(place);
      if (before->second >= place->first) {
        before->second = place->second;
        busy_.erase(place);
      }
    }
  }
  total += seconds;
  return start + seconds;
}

// Tile and wave quantisation: NVIDIA, "Matrix Multiplication Background User's Guide". The last wave of blocks leaves
// multiprocessors idle; 64 x 64 is the smallest tile at which products still run near the card's rate.
static double filled(double tiles) {
  if (!settings.waves || tiles <= 0) return 1;
  double waves = std::ceil(tiles / settings.multiprocessors);
  return tiles / (waves * settings.multiprocessors);
}

double Clock::seconds_of(const Kernel& kernel) const {
  double arithmetic = kernel.flops / (settings.flops[kernel.rate] * filled(kernel.tiles));
  return std::max({settings.kernel, arithmetic, kernel.bytes / settings.memory});
}

double Clock::end() const { return std::max({host, compute.end(), to_device.end(), to_host.end()}); }

}  // namespace card
