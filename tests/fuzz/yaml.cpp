/// \file yaml.cpp
/// Fuzzes the YAML reader. Bytes up to the first NUL are an input, those behind it a `--set`.

#include "config/input.hpp"
#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace onebit;
  const std::string all(data, data + size);
  const std::size_t end = all.find('\0');
  std::vector<std::string> overrides;
  if (end != std::string::npos) overrides.push_back(all.substr(end + 1));
  fuzz::refuses_or_reads([&] {
    const config::Input input = config::parse(all.substr(0, end), "fuzz.yaml", overrides);
    // What is written of it says the same.
    const config::Input again = config::parse(config::resolved(input), "resolved", {});
    fuzz::expect(config::differences(input, again).empty(), "a resolved input is the input");
    config::check(input, 4);
  });
  return 0;
}
