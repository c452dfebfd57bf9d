#include "io/figures.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/names.hpp"
#include "base/system/build_info.hpp"

namespace onebit {
namespace {

using Json = nlohmann::ordered_json;  // which writes null for a number that is not finite

// Without the classes of <cctype>, which depend on the locale.
bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_word(char c) { return is_lower(c) || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; }

std::string on_one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

/// A text, or the number that it is.
Json number_or_text(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0') return text;
  const bool is_whole = std::floor(number) == number && std::abs(number) < 0x1p53;
  return is_whole ? Json(static_cast<std::int64_t>(number)) : Json(number);
}

}  // namespace

void FiguresOfMerit::set(const std::string& name, double value, const std::string& unit) {
  if (name.empty() || !is_lower(name.front()) || !std::all_of(name.begin(), name.end(), is_word))
    throw std::invalid_argument("figure of merit: '" + name + "' is no name for one");
  if (unit.empty() || std::any_of(unit.begin(), unit.end(), [](char c) { return c <= ' '; }))
    throw std::invalid_argument("figure of merit: '" + unit + "' is no unit");
  const auto same = [&](const Figure& figure) { return figure.name == name; };
  const auto earlier = std::find_if(m_figures.begin(), m_figures.end(), same);
  if (earlier != m_figures.end())
    *earlier = {name, value, unit};
  else
    m_figures.push_back({name, value, unit});
}

void FiguresOfMerit::reject(const std::string& what, const std::string& remedy) {
  m_wrong.push_back(what);
  if (std::find(m_remedies.begin(), m_remedies.end(), remedy) == m_remedies.end()) m_remedies.push_back(remedy);
}

std::string FiguresOfMerit::verdict() const {
  if (!m_wrong.empty()) return on_one_line(joined(m_wrong));
  return m_right.empty() ? "nothing was checked" : on_one_line(joined(m_right));
}

std::string FiguresOfMerit::remedy() const { return on_one_line(joined(m_remedies, "; ")); }

std::string FiguresOfMerit::text() const {
  std::string lines;
  for (const Figure& figure : m_figures) {
    char value[32];
    std::snprintf(value, sizeof value, "%.6g", figure.value);
    lines += "FOM " + figure.name + " " + value + " " + figure.unit + "\n";
  }
  return lines + "VALIDATION " + (passed() ? "PASSED " : "FAILED ") + verdict() + "\n";
}

std::string FiguresOfMerit::json(const std::string& command, int ranks) const {
  Json figures = Json::object();
  for (const Figure& figure : m_figures) figures[figure.name] = {{"value", figure.value}, {"unit", figure.unit}};
  Json notes = Json::object();
  for (const auto& [name, text] : m_notes) notes[name] = number_or_text(text);
  const Json all = {{"version", build_version},
                    {"git", build_git},
                    {"command", command},
                    {"ranks", ranks},
                    {"run", notes},
                    {"figures_of_merit", figures},
                    {"validation", {{"passed", passed()}, {"text", verdict()}}}};
  // Bytes that are not UTF-8, in a name of the user's, become the replacement character.
  return all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace onebit
