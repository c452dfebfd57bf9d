/// \file yaml.cpp
/// The only code that reads YAML: from text to the keys of keys.cpp, with the place of every mistake.

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <sstream>

#include "base/error.hpp"
#include "base/names.hpp"
#include "config/keys.hpp"

namespace onebit::config {
namespace {

std::string place(const std::string& file, const YAML::Mark& mark) {
  if (mark.is_null()) return file;
  return file + ":" + std::to_string(mark.line + 1) + ":" + std::to_string(mark.column + 1);
}

/// \param place_of (mark) the place of what stands there
template <class PlaceOf>
RawMap raw_map(const YAML::Node& node, const PlaceOf& place_of) {
  RawMap map{place_of(node.Mark()), {}};
  for (const auto& pair : node)
    map.entries.push_back({pair.first.IsScalar() ? pair.first.Scalar() : "",
                           pair.second.IsScalar() ? pair.second.Scalar() : "", pair.second.IsScalar(),
                           place_of(pair.first.Mark())});
  return map;
}

/// \param where the place of the key
template <class PlaceOf>
RawValue raw_value(const YAML::Node& node, const std::string& path, const std::string& where, const PlaceOf& place_of) {
  RawValue raw;
  raw.where = where;
  raw.is_list = node.IsSequence();
  const auto take = [&](const YAML::Node& one, const char* wrong, const char* remedy) {
    if (one.IsScalar())
      raw.items.push_back(one.Scalar());
    else if (one.IsMap())
      raw.maps.push_back(raw_map(one, place_of));
    else
      throw InputError(where, path + wrong, remedy);
  };
  if (!raw.is_list) take(node, " has no value", "give a value or leave out the key");
  if (raw.is_list)
    for (const YAML::Node& item : node)
      take(item, " holds something that is not a single value", "give a list of single values");
  return raw;
}

/// Names of earlier versions, and what to write today.
constexpr struct {
  const char *name, *what, *remedy;
} retired[] = {{"warmup", "renamed", "name it 'freeze'; its key 'steps' is 'step' there, all others are the same"},
               {"comm.collective: dense", "renamed", "write compression.compressor: none"},
               {"predict", "moved", "leave it out: scripts/predict.py takes it"},
               {"checkpoint.background", "removed", "leave it out: a run waits for its checkpoints"}};

void refuse_retired(const std::string& name, const std::string& where) {
  for (const auto& one : retired)
    if (name == one.name) throw InputError(where, "'" + name + "' was " + one.what, one.remedy);
}

/// Sections and keys by name, and messages for names that are unknown.
class KnownKeys {
public:
  explicit KnownKeys(Input& input) : m_sections(keys(input)) {}

  bool has_section(const std::string& name) const {
    return std::any_of(m_sections.begin(), m_sections.end(),
                       [&](const Section& section) { return section.name == name; });
  }

  const Section& section(const std::string& name, const std::string& where) const {
    std::vector<std::string> known;
    for (const Section& section : m_sections) {
      if (section.name == name) return section;
      known.push_back(section.name);
    }
    refuse_retired(name, where);
    throw InputError(where, "unknown section '" + excerpt(name) + "'", remedy_for_unknown(meant(name, known), known));
  }

  const Key& key(const Section& section, const std::string& name, const std::string& where) const {
    std::vector<std::string> known;
    for (const Key& key : section.keys) {
      if (key.name == name) return key;
      known.push_back(key.name);
    }
    for (const Section& other : m_sections)
      if (other.name.rfind(section.name + ".", 0) == 0) known.push_back(other.name.substr(section.name.size() + 1));
    refuse_retired(section.name + "." + name, where);
    // A key of another section is a likelier mistake than one that is far from every key of this section.
    std::string path = meant(name, known);
    if (!path.empty()) path = section.name + "." + path;
    for (const Section& other : m_sections)
      for (const Key& key : other.keys)
        if (key.name == name) path = key.path();
    throw InputError(where, "unknown key '" + section.name + "." + excerpt(name) + "'",
                     remedy_for_unknown(path, known));
  }

private:
  std::vector<Section> m_sections;
};

/// Refuses texts that yaml-cpp handles wrongly. It builds nodes by recursion, before 0.7 without limit. It also takes a
/// stray bracket or comma for the end of a document, and then makes no progress or drops the rest of the text.
class Guard : public YAML::EventHandler {
public:
  explicit Guard(const std::string& where) : m_where(where) {}

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++m_documents > 1)
      throw InputError(place(m_where, mark), "more than one YAML document begins here",
                       "remove the '---', bracket or comma that ends the first one");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    begin(mark);
  }
  void OnSequenceEnd() override { --m_depth; }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    begin(mark);
  }
  void OnMapEnd() override { --m_depth; }

private:
  void begin(const YAML::Mark& mark) {
    constexpr int deepest = 16;  // sections, keys and lists are 3; between, other messages are better
    if (++m_depth > deepest)
      throw InputError(place(m_where, mark), "this is nested too deeply", "give sections, keys and their values alone");
  }

  std::string m_where;
  int m_documents = 0;
  int m_depth = 0;
};

/// The one document of the text. \param where the name of the text in messages
YAML::Node load(std::string text, const std::string& where) {
  // Where the text ends with a line end, yaml-cpp 0.7 takes all that follows an unclosed quote for the value.
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  Guard guard(where);
  while (parser.HandleNextDocument(guard)) {
  }
  return YAML::Load(text);
}

/// The text with the line ends of Linux: yaml-cpp does not know those of old Macs.
std::string with_line_feeds(const std::string& text) {
  std::string lines;
  for (std::size_t i = 0; i < text.size(); ++i)
    if (text[i] != '\r')
      lines += text[i];
    else if (i + 1 == text.size() || text[i + 1] != '\n')
      lines += '\n';
  return lines;
}

YAML::Node load_input(const std::string& text, const std::string& name) {
  if (const std::string begin = text.substr(0, 2); begin == "\xFF\xFE" || begin == "\xFE\xFF")
    throw InputError(name, "the input is text in UTF-16 or UTF-32", "convert it: iconv -f UTF-16 -t UTF-8");
  if (const std::size_t nul = text.find('\0'); nul != std::string::npos)
    throw InputError(name + ":" + std::to_string(1 + std::count(text.begin(), text.begin() + nul, '\n')),
                     "the input holds a NUL byte", "write it as UTF-8 text");
  try {
    const YAML::Node document = load(with_line_feeds(text), name);
    if (document.IsNull())
      throw InputError(name, "the input is empty",
                       "write at least one section, e.g. 'train:' (docs/reference/input.md)");
    return document;
  } catch (const YAML::Exception& error) {
    throw InputError(place(name, error.mark), "this is not YAML: " + excerpt(error.msg),
                     "check indentation (spaces only), colons and quotes on this line");
  }
}

/// Takes what the nodes of a text give into an input.
class Reader {
public:
  /// \param name of the text in messages
  Reader(Input& input, const std::string& name) : m_input(input), m_known(input), m_name(name) {}

  void take(const YAML::Node& root) {
    if (!root.IsMap())
      throw InputError(place_of(root), "the input is not a map of sections", "begin with e.g. 'train:'");
    for (const auto& entry : root) {
      const std::string name = text_of(entry.first), where = place_of(entry.first);
      if (const std::size_t dot = name.find('.'); dot != std::string::npos && m_known.has_section(name))
        throw InputError(where, "section '" + name + "' is inside of section '" + name.substr(0, dot) + "'",
                         "write '" + name.substr(dot + 1) + ":' below '" + name.substr(0, dot) + ":'");
      if (const std::size_t dot = name.rfind('.'); dot != std::string::npos && m_known.has_section(name.substr(0, dot)))
        throw InputError(where, "key '" + excerpt(name) + "' is not below its section",
                         "write '" + excerpt(name.substr(dot + 1)) + ":' below '" + name.substr(0, dot) + ":'");
      take_section(name, where, entry.second);
    }
  }

  /// \param where of the text "section.key=value"
  void take_override(const std::string& text, const std::string& where) {
    const std::size_t equals = text.find('='), dot = text.rfind('.', equals);
    if (equals == std::string::npos || dot == std::string::npos)
      throw InputError(where, "this is not of the form section.key=value", "write e.g. --set train.steps=100");
    const Section& section = m_known.section(text.substr(0, dot), where);
    const Key& key = m_known.key(section, text.substr(dot + 1, equals - dot - 1), where);
    set(key, override_value(key, text.substr(equals + 1), where));
  }

private:
  /// A value of `--set`. Lists, maps and quoted texts are YAML. Any other value is taken as it stands, whatever it
  /// means in YAML: "run #3" has no comment.
  static RawValue override_value(const Key& key, std::string value, const std::string& where) {
    const bool is_text = key.type == "text" || key.type == "path";
    const std::size_t first = value.find_first_not_of(' ');
    const char begin = first == std::string::npos ? '\0' : value[first];
    if (begin == '"' || begin == '\'' || (!is_text && (begin == '[' || begin == '{'))) try {
        return raw_value(load(value, where), key.path(), where, [&](const YAML::Mark&) { return where; });
      } catch (const YAML::Exception& error) {
        throw InputError(where, "the value is not YAML: " + excerpt(error.msg), "quote the value for the shell");
      }
    if (!is_text && begin == '\0') throw InputError(where, key.path() + " has no value", "give one behind the '='");
    if (!is_text) value = value.substr(first, value.find_last_not_of(' ') + 1 - first);
    RawValue raw;
    raw.items.push_back(value);
    raw.where = where;
    return raw;
  }

  static std::string text_of(const YAML::Node& node) { return node.IsScalar() ? node.Scalar() : ""; }
  std::string place_of(const YAML::Node& node) const { return place(m_name, node.Mark()); }

  void take_section(const std::string& name, const std::string& where, const YAML::Node& keys) {
    const Section& section = m_known.section(name, where);
    if (const auto [first, added] = m_sections.emplace(section.name, where); !added)
      throw InputError(where, "section '" + section.name + "' is given twice, first at " + first->second,
                       "put all its keys into one of them");
    if (keys.IsNull()) return;
    if (!keys.IsMap())
      throw InputError(where, "section '" + section.name + "' is not a map of keys",
                       "indent 'key: value' lines below it");
    for (const auto& pair : keys) {
      const std::string place = place_of(pair.first), inner = section.name + "." + text_of(pair.first);
      // A key of a section inside of this one may have both names: "quantization.kind" in section model.
      const std::size_t dot = inner.rfind('.');
      const bool has_both = dot > section.name.size() && m_known.has_section(inner.substr(0, dot));
      if (m_known.has_section(inner))
        take_section(inner, place, pair.second);
      else if (has_both)
        take_key(m_known.key(m_known.section(inner.substr(0, dot), place), inner.substr(dot + 1), place), place,
                 pair.second);
      else
        take_key(m_known.key(section, text_of(pair.first), place), place, pair.second);
    }
  }

  void take_key(const Key& key, const std::string& where, const YAML::Node& value) {
    if (const auto first = m_input.given.find(key.path()); first != m_input.given.end())
      throw InputError(where, "key '" + key.path() + "' is given twice, first at " + first->second,
                       "remove one of them");
    set(key, raw_value(value, key.path(), where, [&](const YAML::Mark& mark) { return place(m_name, mark); }));
  }

  void set(const Key& key, const RawValue& raw) {
    if (!raw.is_list && !raw.items.empty()) refuse_retired(key.path() + ": " + raw.items.front(), raw.where);
    key.parse(raw);
    m_input.given[key.path()] = raw.where;
  }

  Input& m_input;
  KnownKeys m_known;
  std::string m_name;
  std::map<std::string, std::string> m_sections;  ///< the place of each section so far
};

}  // namespace

Input parse(const std::string& text, const std::string& name, const std::vector<std::string>& overrides) {
  Input input;
  input.file = name;
  Reader reader(input, name);
  reader.take(load_input(text, name));
  for (const std::string& one : overrides) reader.take_override(one, "--set " + excerpt(one));
  apply_preset(input);
  return input;
}

}  // namespace onebit::config
