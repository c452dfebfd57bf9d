#pragma once
/// \file numbers.hpp
/// Numbers as people write them in an input: decimal digits with a sign, a point and an exponent. Other notations are
/// refused, because YAML 1.1, YAML 1.2, C and spreadsheets read them differently: 010, 0x10, 1_000, 1,5, 12:30.

#include <string>

namespace onebit::config {

/// Whether a text is a number: "5", "+5", "5.", ".5", "1e3", "-1.5e-3".
bool is_decimal(const std::string& text);

/// The digits of the integer that a decimal text means, with its sign: "1000" of "1e3" and "1000.0"; empty for a
/// fraction and for what is no number. Of more than 30 digits there may be fewer, but always too many for 64 bits.
std::string whole_number(const std::string& text);

/// What to write in place of a number in another notation: "16" for "0x10", "1000" for "1_000"; empty where this is not
/// clear.
std::string in_decimal(const std::string& text);

}  // namespace onebit::config
