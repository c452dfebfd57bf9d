#include "config/numbers.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>

namespace onebit::config {
namespace {

constexpr const char* digits = "0123456789";

/// The parts of a decimal text.
struct Decimal {
  bool negative = false;
  std::string whole, fraction;  ///< digits before and behind the point
  long exponent = 0;
};

bool is_digits(const std::string& text) { return text.find_first_not_of(digits) == std::string::npos; }

std::optional<Decimal> parts_of(std::string text) {
  Decimal parts;
  if (!text.empty() && (text.front() == '+' || text.front() == '-')) {
    parts.negative = text.front() == '-';
    text.erase(0, 1);
  }
  if (const std::size_t e = text.find_first_of("eE"); e != std::string::npos) {
    std::string exponent = text.substr(e + 1);
    const bool has_sign = !exponent.empty() && (exponent.front() == '+' || exponent.front() == '-');
    if (exponent.size() == std::size_t{has_sign} || !is_digits(exponent.substr(has_sign))) return std::nullopt;
    constexpr std::size_t longest = 9;  // of an exponent whose value matters; a longer one is as good as infinite
    if (exponent.size() > longest) exponent = exponent.front() == '-' ? "-99999999" : "99999999";
    parts.exponent = std::strtol(exponent.c_str(), nullptr, 10);
    text.erase(e);
  }
  const std::size_t point = std::min(text.find('.'), text.size());
  parts.whole = text.substr(0, point);
  if (point < text.size()) parts.fraction = text.substr(point + 1);
  if ((parts.whole + parts.fraction).empty() || !is_digits(parts.whole) || !is_digits(parts.fraction))
    return std::nullopt;
  // YAML 1.1 and C read 010 as 8.
  if (parts.whole.size() > 1 && parts.whole.front() == '0') return std::nullopt;
  return parts;
}

}  // namespace

bool is_decimal(const std::string& text) { return parts_of(text).has_value(); }

std::string whole_number(const std::string& text) {
  const std::optional<Decimal> parts = parts_of(text);
  if (!parts) return "";
  std::string all = parts->whole + parts->fraction;
  long zeros = parts->exponent - static_cast<long>(parts->fraction.size());  // to append, or to take away
  if (all.find_first_not_of('0') == std::string::npos) return "0";
  constexpr long most = 30;  // more than a 64-bit integer has
  for (; zeros > 0 && static_cast<long>(all.size()) < most; --zeros) all += '0';
  for (; zeros < 0 && all.size() > 1 && all.back() == '0'; ++zeros) all.pop_back();
  if (zeros < 0) return "";
  all.erase(0, std::min(all.find_first_not_of('0'), all.size()));
  return (parts->negative ? "-" : "") + all;
}

std::string in_decimal(const std::string& text) {
  std::string bare = text;
  bare.erase(std::remove_if(bare.begin(), bare.end(), [](char c) { return c == '_' || c == '\'' || c == ' '; }),
             bare.end());
  char* end = nullptr;
  if (bare.size() > 2 && bare.front() == '0' && std::isxdigit(static_cast<unsigned char>(bare[2])) != 0) {
    const int base = bare[1] == 'x' || bare[1] == 'X' ? 16 : bare[1] == 'o' ? 8 : bare[1] == 'b' ? 2 : 0;
    const std::uint64_t value = base == 0 ? 0 : std::strtoull(bare.c_str() + 2, &end, base);
    if (base != 0 && *end == '\0') return std::to_string(value);
  }
  // 1,000 and 1,000,000 have separators; 1,5 has a decimal comma.
  if (const std::size_t comma = bare.find(','); comma != std::string::npos) {
    if (std::count(bare.begin(), bare.end(), ',') == 1 && bare.size() != comma + 4)
      bare[comma] = '.';
    else
      bare.erase(std::remove(bare.begin(), bare.end(), ','), bare.end());
  }
  const std::size_t zeros = std::min(bare.find_first_not_of('0'), bare.size());
  if (zeros > 0 && zeros < bare.size() && is_digits(bare)) bare.erase(0, zeros);
  return bare != text && is_decimal(bare) ? bare : "";
}

}  // namespace onebit::config
