#include "nn/quantized/quantization.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/names.hpp"

namespace onebit::nn {

bool matches_any(const std::vector<std::string>& patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return matches(pattern, name); });
}

void check_patterns(const std::vector<std::string>& patterns, const std::vector<std::string>& names,
                    const std::string& kind) {
  for (const std::string& pattern : patterns)
    if (std::none_of(names.begin(), names.end(), [&](const std::string& name) { return matches(pattern, name); }))
      throw InputError("model.quantization.exclude",
                       "pattern '" + excerpt(pattern) + "' matches the name of no " + kind,
                       "did you mean '" + nearest(pattern, names, std::string::npos) + "'?");
}

}  // namespace onebit::nn
