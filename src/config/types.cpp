/// \file types.cpp
/// The types of keys.hpp.

#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "base/error.hpp"
#include "base/names.hpp"
#include "config/keys.hpp"
#include "config/numbers.hpp"

namespace onebit::config {
namespace {

/// Shortest decimal text that reads back as the same double; with 6 digits at least before an exponent (100, not
/// 1e+02).
std::string shortest(double value) {
  std::ostringstream text;
  for (int digits = 6; digits <= std::numeric_limits<double>::max_digits10; ++digits) {
    text.str("");
    text.precision(digits);
    text << value;
    if (std::strtod(text.str().c_str(), nullptr) == value) break;
  }
  return text.str();
}

std::string quoted(const std::string& text) {
  std::string escaped = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return escaped + "\"";
}

bool contains(const std::vector<std::string>& words, const std::string& text) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

/// "`path` is '`text`', which `what`"
[[noreturn]] void refuse(const Item& item, const std::string& what, const std::string& remedy) {
  throw InputError(item.where, item.path + " is '" + excerpt(item.text) + "', which " + what, remedy);
}

/// What to write in place of a text that is no number. \param range the numbers that are allowed
std::string remedy_for_number(const std::string& text, const std::string& range) {
  const std::string decimal = in_decimal(text);
  return decimal.empty() ? "give " + range : "write " + decimal + "; numbers are in decimal digits, without separators";
}

std::int64_t read_integer(const Item& item, std::int64_t low, std::int64_t high, const std::string& range) {
  const std::string whole = whole_number(item.text);
  if (whole.empty()) {
    const std::string meant = whole_number(in_decimal(item.text));
    refuse(item, "is not an integer", meant.empty() ? "give " + range : remedy_for_number(item.text, range));
  }
  errno = 0;
  const long long read = std::strtoll(whole.c_str(), nullptr, 10);
  if (errno == ERANGE || read < low || read > high)
    refuse(item, "is out of range",
           "give " + (read > high && high == unbounded ? "at most " + std::to_string(high) : range));
  return read;
}

/// Whether a text holds a control character (U+0080 to U+009F among them) or a line end of Unicode (U+2028, U+2029).
bool has_control(const std::string& text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = [&](std::size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u; };
    if (byte(i) < 0x20 || byte(i) == 0x7F || (byte(i) == 0xC2 && byte(i + 1) < 0xA0 && byte(i + 1) >= 0x80) ||
        (byte(i) == 0xE2 && byte(i + 1) == 0x80 && (byte(i + 2) == 0xA8 || byte(i + 2) == 0xA9)))
      return true;
  }
  return false;
}

/// Texts name files and are printed: a NUL would cut them short, a line end would not read back the same.
std::string read_text(const Item& item) {
  if (has_control(item.text)) refuse(item, "holds a control character", "leave out line ends, tabs and \\ sequences");
  return item.text;
}

/// A path as it stands. What a shell would replace is refused: there is no shell, so the program would make a directory
/// called "~" or "$SCRATCH".
std::string read_path(const Item& item) {
  const std::string& path = read_text(item);
  const std::size_t dollar = path.find('$');
  const auto names_variable = [](char c) {
    return c == '_' || c == '{' || std::isalpha(static_cast<unsigned char>(c));
  };
  const bool is_home = !path.empty() && path.front() == '~';
  if (!is_home && (dollar == std::string::npos || dollar + 1 == path.size() || !names_variable(path[dollar + 1])))
    return path;
  const char* const home = std::getenv("HOME");
  const bool own_home = is_home && home != nullptr && (path.size() == 1 || path[1] == '/');
  refuse(item,
         is_home ? "begins with ~, which only a shell takes for a home directory"
                 : "holds $, which only a shell takes for a variable",
         own_home ? "write the whole path: " + excerpt(home + path.substr(1)) + " (or ./~ for a file of this name)"
                  : "write the whole path, or let the shell put it in, on the command line and in double quotes");
}

}  // namespace

std::string remedy_for_unknown(const std::string& meant, const std::vector<std::string>& known) {
  return meant.empty() ? "use one of " + joined(known) : "did you mean '" + meant + "'?";
}

Type<std::int64_t> integer(std::int64_t low, std::int64_t high) {
  const std::string range =
      high == unbounded ? "≥ " + std::to_string(low) : "[" + std::to_string(low) + ", " + std::to_string(high) + "]";
  return {"integer", range, [=](const Item& item) { return read_integer(item, low, high, range); },
          [](const std::int64_t& value) { return std::to_string(value); }};
}

Type<double> real(double low, double high, bool low_allowed) {
  const std::string range = std::isinf(high) ? (low_allowed ? "≥ " : "> ") + shortest(low)
                                             : (low_allowed ? "[" : "(") + shortest(low) + ", " + shortest(high) + "]";
  const auto read = [=](const Item& item) {
    const double read = is_decimal(item.text) ? std::strtod(item.text.c_str(), nullptr) : infinity;
    if (!std::isfinite(read))
      refuse(item, "is not a finite number", remedy_for_number(item.text, "a number, " + range));
    // Kernels compute with floats, in which such a number would be infinite or 0.
    using Float = std::numeric_limits<float>;
    if (std::abs(read) > Float::max() || (read != 0 && std::abs(read) < Float::min()))
      refuse(item, "single precision cannot hold",
             "give a number, " + range + ", whose size is between 1.2e-38 and 3.4e38");
    if (read < low || read > high || (read == low && !low_allowed))
      refuse(item, "is out of range", "give a number, " + range);
    return read;
  };
  return {"real", range, read, shortest};
}

Type<std::string> word(const std::vector<std::string>& words) {
  const auto read = [=](const Item& item) {
    if (contains(words, item.text)) return item.text;
    std::string lower = item.text;
    std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
    const std::string likeliest = lower.empty() ? "" : meant(lower, words);
    refuse(item, "is not one of its values",
           (likeliest.empty() ? "" : "did you mean '" + likeliest + "'? ") + ("give one of " + joined(words)));
  };
  return {"word", joined(words), read, [](const std::string& value) { return value; }};
}

Type<NumberOrWord> integer_or_word(std::int64_t low, const std::vector<std::string>& words, std::int64_t multiple) {
  const std::string range = joined(words) + " or an integer ≥ " + std::to_string(low) +
                            (multiple == 1 ? "" : " that is a multiple of " + std::to_string(multiple));
  const auto read = [=](const Item& item) {
    if (contains(words, item.text)) return NumberOrWord{item.text, 0};
    const NumberOrWord value{"", read_integer(item, low, unbounded, range)};
    if (value.number % multiple != 0) refuse(item, "is not a multiple of " + std::to_string(multiple), "give " + range);
    return value;
  };
  return {"integer or word", range, read,
          [](const NumberOrWord& value) { return value.word.empty() ? std::to_string(value.number) : value.word; }};
}

Type<std::string> type_of(const std::string&) { return {"text", "", read_text, quoted}; }

Type<std::string> path_type() { return {"path", "", read_path, quoted}; }

Type<bool> type_of(bool) {
  const auto read = [](const Item& item) {
    if (item.text != "true" && item.text != "false") refuse(item, "is not a boolean", "give true or false");
    return item.text == "true";
  };
  return {"boolean", "true or false", read, [](const bool& value) { return std::string(value ? "true" : "false"); }};
}

}  // namespace onebit::config
