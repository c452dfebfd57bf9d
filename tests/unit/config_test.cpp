/// \file config_test.cpp
/// The input: every declared key at the ends of its range, texts that read back the same, the place and remedy of
/// every mistake, combinations that are refused, and the documentation made from the declaration.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "../rates_reference.hpp"
#include "../source_directory.hpp"
#include "base/error.hpp"
#include "base/names.hpp"
#include "config/checks.hpp"
#include "config/keys.hpp"

namespace onebit::config {
namespace {

/// Every key's value as YAML, by its path.
std::map<std::string, std::string> values(Input input) {
  std::map<std::string, std::string> all;
  for (const Section& section : keys(input))
    for (const Key& key : section.keys) all[key.path()] = key.print();
  return all;
}

Input parsed(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return parse(text, "a.yaml", overrides);
}

/// The message with which a text is refused, or an empty one. Everything that a user may write wrong is an InputError.
std::string refusal(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    parsed(text, overrides);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}
std::string refusal_of_check(const std::string& text, int ranks) {
  try {
    check(parsed(text), ranks);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

/// Expects a refusal that begins with its place, names all of `parts` and gives a remedy.
void expect_refused(const std::string& message, const std::string& place, const std::vector<std::string>& parts) {
  ASSERT_NE(message, "") << "it was taken";
  EXPECT_EQ(message.substr(0, place.size() + 2), place + ": ") << message;
  EXPECT_NE(message.find("\n  remedy: "), std::string::npos) << message;
  for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << part << " in " << message;
}

bool is_inside_of_a_section(const Key& key) { return key.section.find('.') != std::string::npos; }

std::string one_key(const Key& key, const std::string& value) {
  const std::string of_value = key.name + ": " + value + "\n";
  if (!is_inside_of_a_section(key)) return key.section + ":\n  " + of_value;
  const std::size_t dot = key.section.find('.');
  return key.section.substr(0, dot) + ":\n  " + key.section.substr(dot + 1) + ":\n    " + of_value;
}
/// Where the key is in that text.
std::string place_of(const Key& key) { return is_inside_of_a_section(key) ? "a.yaml:3:5" : "a.yaml:2:3"; }

/// Some input with which the program would do something at all.
const std::string minimal = "train:\n  steps: 10\n";

TEST(Keys, are_documented) {
  Input input;
  std::set<std::string> paths;
  const std::set<std::string> types = {"integer",          "real",          "boolean",      "text",
                                       "list of text",     "list of words", "word",         "integer or word",
                                       "list of integers", "list of reals", "list of maps", "path",
                                       "list of paths"};
  for (const Section& section : keys(input)) {
    EXPECT_FALSE(section.meaning.empty()) << section.name;
    for (const Key& key : section.keys) {
      EXPECT_TRUE(paths.insert(key.path()).second) << key.path() << " is declared twice";
      EXPECT_EQ(key.section, section.name);
      EXPECT_EQ(types.count(key.type), 1u) << key.path();
      EXPECT_FALSE(key.meaning.empty()) << key.path();
    }
  }
}

TEST(Keys, defaults_read_back_the_same) {
  const auto defaults = values(parsed(minimal));
  Input input;
  for (const Section& section : keys(input))
    for (const Key& key : section.keys) {
      if (key.path() == "train.steps") continue;
      const Input read = parsed(
          minimal + (key.section == "train" ? "  " + key.name + ": " + key.print() + "\n" : one_key(key, key.print())));
      EXPECT_EQ(values(read), defaults) << key.path();
      EXPECT_EQ(read.given.count(key.path()), 1u) << key.path();
    }
}

/// Ends of a range as `allowed` prints it: "≥ a", "> a", "[a, b]" or "(a, b]".
struct Range {
  double low, high;
  bool low_allowed, bounded;
};
Range range_of(const Key& key) {
  std::smatch found;
  if (std::regex_match(key.allowed, found, std::regex(R"((≥|>) (\S+))")))
    return {std::stod(found[2]), 2147483647.0, found[1] == "≥", key.type == "integer"};
  if (std::regex_match(key.allowed, found, std::regex(R"(([\[(])(\S+), (\S+)\])")))
    return {std::stod(found[2]), std::stod(found[3]), found[1] == "[", true};
  ADD_FAILURE() << key.path() << " has the range " << key.allowed;
  return {0, 0, true, true};
}

std::string decimal(double value) {
  std::ostringstream text;
  text.precision(10);
  text << value;
  return text.str();
}

/// Expects that a value is taken, and that what is printed of it reads back as the same.
void expect_taken(const Key& key, const std::string& value) {
  SCOPED_TRACE(key.path() + ": " + value);
  ASSERT_EQ(refusal(one_key(key, value)), "");
  const auto first = values(parsed(one_key(key, value)));
  const std::string printed = first.at(key.path());
  EXPECT_EQ(values(parsed(one_key(key, printed))), first);
  EXPECT_EQ(values(parsed(minimal, {key.path() + "=" + value})).at(key.path()), printed);
}

void expect_not_taken(const Key& key, const std::string& value) {
  SCOPED_TRACE(key.path() + ": " + value);
  expect_refused(refusal(one_key(key, value)), place_of(key), {key.path()});
  EXPECT_EQ(refusal(minimal, {key.path() + "=" + value}).rfind("--set " + key.path() + "=", 0), 0u);
}

TEST(Keys, numbers_are_taken_up_to_the_ends_of_their_range) {
  Input input;
  for (const Section& section : keys(input))
    for (const Key& key : section.keys) {
      if ((key.type != "integer" && key.type != "real") || key.path() == "run.seed") continue;
      const Range range = range_of(key);
      const double step = key.type == "integer" ? 1 : 1e-3;
      if (range.low_allowed)
        expect_taken(key, decimal(range.low));
      else
        expect_not_taken(key, decimal(range.low));
      expect_taken(key, decimal(range.low + step));
      expect_not_taken(key, decimal(range.low - step));
      if (range.bounded) {
        expect_taken(key, key.type == "integer" ? std::to_string(static_cast<long>(range.high)) : decimal(range.high));
        expect_not_taken(key, key.type == "integer" ? std::to_string(static_cast<long>(range.high) + 1)
                                                    : decimal(range.high * 1.001));
      }
      for (const char* wrong : {"x",      "1x", "''",   "nan",  ".inf", "-.inf", "1e999", "1,5", "[1]", "[]",
                                "{a: 1}", "~",  "true", "0x10", "010",  "1_0",   "1:30",  "'-'", ".",   "e3"})
        expect_not_taken(key, wrong);
      if (key.type == "integer")
        for (const char* wrong : {"1.5", "15e-1", "99999999999999999999", "1e99"}) expect_not_taken(key, wrong);
    }
}

TEST(Keys, integers_may_have_an_exponent_or_a_point) {
  for (const char* text : {"1000", "1e3", "1E+3", "1000.0", "+1000", "1.e3", ".1e4", "10000e-1"})
    EXPECT_EQ(parsed(std::string("train: {steps: ") + text + "}").train.steps, 1000) << text;
  EXPECT_EQ(parsed("train: {steps: 5}", {"train.steps= 2e3 "}).train.steps, 2000);
  EXPECT_EQ(parsed("freeze: {step: 1e2}").freeze.step.number, 100);
  EXPECT_EQ(parsed("bench: {pixels: [8, 6.4e1]}").bench.pixels, (std::vector<std::int64_t>{8, 64}));
  for (const std::string& seed : {std::string("9223372036854775807"), std::string("2147483648"), std::string("0")}) {
    const Input input = parsed("run: {seed: " + seed + "}");
    EXPECT_EQ(std::to_string(input.run.seed), seed);
    EXPECT_EQ(parsed(resolved(input)).run.seed, input.run.seed);
  }
  for (const char* seed : {"9223372036854775808", "-1", "1e19"})
    expect_refused(refusal(std::string("run: {seed: ") + seed + "}"), "a.yaml:1:7", {"run.seed", "out of range"});
}

/// Other notations are refused with what to write, in files and with --set, for integers and for reals alike.
TEST(Keys, other_notations_of_numbers_are_refused_with_what_to_write) {
  const struct {
    const char *text, *decimal;
  } cases[] = {{"0x10", "16"},
               {"0b101", "5"},
               {"0o17", "15"},
               {"010", "10"},
               {"1_000", "1000"},
               {"'1,000'", "1000"},
               {"'1,000,000'", "1000000"},
               {"1'000", "1000"},
               {"'1 000'", "1000"}};
  for (const auto& one : cases)
    for (const char* key : {"train:\n  steps: ", "optimizer:\n  clip: ", "freeze:\n  step: "})
      expect_refused(refusal(key + std::string(one.text) + "\n"), "a.yaml:2:3", {std::string("write ") + one.decimal});
  expect_refused(refusal("optimizer:\n  lr: '1,5e-3'\n"), "a.yaml:2:3", {"write 1.5e-3"});
  for (const char* none : {"12:30:00", "1h", "five", "0x", "1e", "--5", "1 2 x"})
    EXPECT_EQ(refusal("train:\n  steps: " + std::string(none) + "\n").find("write "), std::string::npos) << none;
}

TEST(Keys, likeliest_words_are_named) {
  const struct {
    const char *text, *meant;
  } cases[] = {{"optimizer: {algorithm: Adam}", "'adam'"},
               {"optimizer: {algorithm: 1bit_adam}", "'onebit_adam'"},
               {"optimizer: {algorithm: OneBit_Adam}", "'onebit_adam'"},
               {"run: {backend: OpenMP}", "'openmp'"},
               {"model: {architecture: GPT2}", "'gpt'"},
               {"freeze: {step: Auto}", "auto or"},
               {"data: {tokenizer: byte}", "'bytes'"}};
  for (const auto& one : cases) EXPECT_NE(refusal(one.text).find(one.meant), std::string::npos) << refusal(one.text);
  EXPECT_EQ(refusal("run: {backend: wibblewobble}").find("did you mean"), std::string::npos);
}

bool is_path(const Key& key) { return key.type == "path" || key.type == "list of paths"; }

TEST(Keys, paths_are_not_a_shells) {
  Input input;
  int found = 0;
  for (const Section& section : keys(input))
    for (const Key& key : section.keys) {
      if (!is_path(key)) continue;
      ++found;
      for (const char* wrong : {"~/a", "'~'", "~someone/a", "$SCRATCH/a", "a/${USER}", "$HOME"})
        expect_not_taken(key, wrong);
      expect_refused(refusal(one_key(key, "~/a")), place_of(key), {"home directory", "whole path"});
      for (const char* right : {"./~a", "a~", "a/~/b", "US$", "5$ 3"}) expect_taken(key, right);
    }
  EXPECT_EQ(found, 13);
}

/// What stands behind --set is a text as it is, unless the key's type is another one.
TEST(Keys, overrides_are_texts_as_they_stand) {
  for (const char* text :
       {"run #3", "a: b", "a,b",   "-",    "- a", "=1",  "@x",  "%d",    "back\\slash", "&a",   "*a", "!!int 3",
        "yes",    "null", "1_000", "0x10", "1e3", "[x]", "{a}", " lead", "trail ",      "it's", "µ‖", "a=b"}) {
    const Input input = parsed(minimal, {std::string("run.output=") + text});
    EXPECT_EQ(input.run.output, text);
    EXPECT_EQ(parsed(resolved(input)).run.output, text) << "the resolved input reads back";
  }
  EXPECT_EQ(parsed(minimal, {"data.corpus=a, b #2.txt"}).data.corpus, (std::vector<std::string>{"a, b #2.txt"}));
  EXPECT_EQ(parsed(minimal, {"data.corpus=[a, 'b, #2.txt']"}).data.corpus,
            (std::vector<std::string>{"a", "b, #2.txt"}));
  EXPECT_EQ(parsed(minimal, {"run.output='quoted #1'"}).run.output, "quoted #1");
  EXPECT_EQ(parsed("run: {dump_parameters: x.h5}", {"run.dump_parameters="}).run.dump_parameters, "");
  for (const char* wrong : {"run.output=a\xC2\x85 b", "run.output=a\xE2\x80\xA8 b", "run.output=a\xC2\x80 b"})
    EXPECT_NE(refusal(minimal, {wrong}).find("control character"), std::string::npos) << wrong;
  EXPECT_EQ(parsed(minimal, {"run.output=no\xC2\xA0 break"}).run.output, "no\xC2\xA0 break");
  for (const char* wrong : {"train.steps=5 # five", "optimizer.lr=&a 1", "optimizer.bias_correction=!!bool true"})
    EXPECT_NE(refusal(minimal, {wrong}), "") << wrong;
}

TEST(Keys, words_are_taken_as_listed) {
  Input input;
  for (const Section& section : keys(input))
    for (const Key& key : section.keys) {
      if (key.type == "boolean") {
        for (const char* word : {"true", "false"}) expect_taken(key, word);
        for (const char* wrong : {"yes", "1", "True", "[true]", "~"}) expect_not_taken(key, wrong);
      }
      if (key.type == "word" || key.type == "integer or word") {
        const std::string words = key.allowed.substr(0, key.allowed.find(" or an integer"));
        std::istringstream list(words);
        for (std::string word; std::getline(list >> std::ws, word, ',');) expect_taken(key, word);
        for (const char* wrong : {"other", "''", "ADAM", "[auto]", "~", "{a: 1}"}) expect_not_taken(key, wrong);
        expect_refused(refusal(one_key(key, "other")), place_of(key), {words});
      }
      if (key.type == "integer or word") {
        const int low = std::stoi(key.allowed.substr(key.allowed.find("≥ ") + std::string("≥ ").size()));
        const bool is_multiple = key.allowed.find("multiple of 32") != std::string::npos;
        expect_taken(key, std::to_string(low));
        expect_taken(key, is_multiple ? "2147483616" : "2147483647");
        for (const std::string& wrong : {std::to_string(low - 1), std::string("2147483648"), std::string("64.5")})
          expect_not_taken(key, wrong);
        if (is_multiple) expect_refused(refusal(one_key(key, "100")), place_of(key), {"not a multiple of 32"});
      }
    }
}

TEST(Keys, text_reads_back_the_same) {
  Input input;
  for (const Section& section : keys(input))
    for (const Key& key : section.keys) {
      if (key.type != "text" && key.type != "list of text" && !is_path(key)) continue;
      for (const char* value : {"plain", "'with space '", "\"quote \\\" and \\\\ backslash\"", "'a: b # c'", "a=b.c",
                                "'[x]'", "true", "1.50", "µ‖", "'- a'", "'%x'", "'@a'"})
        expect_taken(key, value);
      EXPECT_NE(values(parsed(one_key(key, "'it''s'"))).at(key.path()).find("it's"), std::string::npos);
      for (const char* wrong : {"{a: 1}", "~", "\"line\\nend\"", "\"nul\\0\""})
        expect_refused(refusal(one_key(key, wrong)), place_of(key), {key.path()});
    }
  EXPECT_EQ(parsed("run: {dump_parameters: ''}").run.dump_parameters, "");
}

TEST(Keys, lists_are_taken_item_by_item) {
  using List = std::vector<std::string>;
  EXPECT_EQ(parsed("data:\n  corpus: [a, 'b c', \"d,e\"]\n").data.corpus, (List{"a", "b c", "d,e"}));
  EXPECT_EQ(parsed("data:\n  corpus:\n    - a\n    - b\n").data.corpus, (List{"a", "b"}));
  EXPECT_EQ(parsed("data:\n  corpus: a\n").data.corpus, (List{"a"}));
  EXPECT_EQ(parsed(minimal, {"data.corpus=[x, y]"}).data.corpus, (List{"x", "y"}));
  for (const char* wrong : {"[]", "[[a]]", "[a, {b: 1}]", "[a, ~]"})
    expect_refused(refusal(std::string("data:\n  corpus: ") + wrong + "\n"), "a.yaml:2:3", {"data.corpus"});
  expect_refused(refusal("run:\n  output: [a]\n"), "a.yaml:2:3", {"run.output", "list"});
}

TEST(Keys, numbers_of_lists_are_taken_in_their_range) {
  Input input;
  for (const Section& section : keys(input))
    for (const Key& key : section.keys) {
      if (key.type != "list of integers" && key.type != "list of reals") continue;
      const Range range = range_of(key);
      const bool integers = key.type == "list of integers";
      const std::string inside = decimal(range.low + (range.low_allowed ? 0 : 0.5)), high = decimal(range.high);
      for (const std::string& value : {"[" + inside + "]", "[" + inside + ", " + high + "]", high})
        expect_taken(key, value);
      for (const std::string& wrong :
           {std::string("[]"), "[" + inside + ", x]", "[" + inside + ", " + decimal(range.low - 1) + "]",
            "[" + decimal(range.high * 2) + "]", std::string("[[1]]"), std::string("[~]"),
            std::string(integers ? "[4.5]" : "[.nan]")})
        expect_not_taken(key, wrong);
    }
  EXPECT_EQ(parsed("bench: {pixels: [4, 8]}").bench.pixels, (std::vector<std::int64_t>{4, 8}));
  expect_refused(refusal("bench:\n  pixels: '8,64'\n"), "a.yaml:2:3", {"no list", "write [8,64]"});
  EXPECT_TRUE(parsed("model: {quantization: {exclude: []}}").model.quantization.exclude.empty());
}

TEST(Keys, maps_of_a_list_are_taken_entry_by_entry) {
  const char* const text =
      "optimizer:\n  groups:\n    - {pattern: 'a.*', lr_factor: 100}\n    - pattern: '*.gamma'\n      weight_decay: "
      "0\n";
  const auto groups = parsed(text).optimizer.groups;
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].pattern, "a.*");
  EXPECT_EQ(groups[0].lr_factor, 100);
  EXPECT_FALSE(groups[0].weight_decay);
  EXPECT_EQ(groups[0].where, "a.yaml:3:7");
  EXPECT_EQ(groups[1].lr_factor, 1);
  EXPECT_EQ(groups[1].weight_decay, 0);
  EXPECT_EQ(groups[1].where, "a.yaml:4:7");
  const std::string printed =
      "[{pattern: \"a.*\", lr_factor: 100}, {pattern: \"*.gamma\", lr_factor: 1, weight_decay: 0}]";
  EXPECT_EQ(values(parsed(text)).at("optimizer.groups"), printed);
  EXPECT_EQ(values(parsed(minimal, {"optimizer.groups=" + printed})).at("optimizer.groups"), printed);
  EXPECT_EQ(values(parsed(resolved(parsed(text)))), values(parsed(text)));
  EXPECT_EQ(parsed("optimizer: {groups: {pattern: a}}").optimizer.groups.size(), 1u) << "one map is a list of it";
  EXPECT_TRUE(parsed(text, {"optimizer.groups=[]"}).optimizer.groups.empty());
}

TEST(Keys, maps_of_a_list_are_refused_with_the_place_of_the_mistake) {
  const struct {
    const char* value;
    const char* place;
    std::vector<std::string> parts;
  } cases[] = {
      {"[{pattern: a, lr_facto: 2}]", "a.yaml:2:25", {"'lr_facto'", "optimizer.groups", "did you mean 'lr_factor'?"}},
      {"[{pattern: a, wibble: 2}]", "a.yaml:2:25", {"'wibble'", "use one of pattern, lr_factor, weight_decay"}},
      {"[{pattern: a}, {lr_factor: 2}]", "a.yaml:2:26", {"no key 'pattern'"}},
      {"[{}]", "a.yaml:2:12", {"no key 'pattern'"}},
      {"[{pattern: a, lr_factor: -2}]", "a.yaml:2:25", {"optimizer.groups.lr_factor", "'-2'", "≥ 0"}},
      {"[{pattern: a, lr_factor: fast}]", "a.yaml:2:25", {"'fast'", "not a finite number"}},
      {"[{pattern: a, weight_decay: -1}]", "a.yaml:2:25", {"optimizer.groups.weight_decay", "≥ 0"}},
      {"[{pattern: a, lr_factor: [2]}]", "a.yaml:2:25", {"optimizer.groups.lr_factor", "not a single value"}},
      {"[{pattern: a, lr_factor: ~}]", "a.yaml:2:25", {"optimizer.groups.lr_factor", "not a single value"}},
      {"[{pattern: [a]}]", "a.yaml:2:13", {"optimizer.groups.pattern", "not a single value"}},
      {"[{pattern: a, pattern: b}]", "a.yaml:2:25", {"optimizer.groups.pattern", "twice"}},
      {"[{? [a] : 1}]", "a.yaml:2:15", {"unknown key"}},
      {"a", "a.yaml:2:3", {"optimizer.groups", "not a map", "[{pattern: …}]"}},
      {"[a]", "a.yaml:2:3", {"optimizer.groups", "not a map"}},
      {"[{pattern: a}, b]", "a.yaml:2:3", {"optimizer.groups", "not a map"}},
      {"[[a]]", "a.yaml:2:3", {"optimizer.groups"}},
      {"~", "a.yaml:2:3", {"optimizer.groups", "no value"}},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.value);
    expect_refused(refusal(std::string("optimizer:\n  groups: ") + one.value + "\n"), one.place, one.parts);
    EXPECT_EQ(refusal(minimal, {std::string("optimizer.groups=") + one.value}).rfind("--set optimizer.groups=", 0), 0u);
  }
}

TEST(Names, patterns_match_as_the_plain_twin_does) {
  const auto word = [](int number, const std::string& letters, int length) {
    std::string text;
    for (; length > 0; --length, number /= static_cast<int>(letters.size())) text += letters[number % letters.size()];
    return text;
  };
  int matching = 0;
  for (int pattern_length = 0; pattern_length <= 4; ++pattern_length)
    for (int p = 0; p < 1 << 2 * pattern_length; ++p)
      for (int length = 0; length <= 4; ++length)
        for (int n = 0; n < 1 << length; ++n) {
          const std::string pattern = word(p, "ab*?", pattern_length), name = word(n, "ab", length);
          ASSERT_EQ(matches(pattern, name), test::matches(pattern, name)) << pattern << " " << name;
          matching += matches(pattern, name);
        }
  EXPECT_GT(matching, 1000);
}

TEST(Names, a_list_has_separators_between_them) {
  EXPECT_EQ(joined(std::vector<std::string>{"a", "b", "c"}), "a, b, c");
  EXPECT_EQ(joined(std::vector<const char*>{"a"}, "; "), "a");
  EXPECT_EQ(joined(std::vector<std::string>{}), "");
}

TEST(Names, the_nearest_one_differs_least) {
  const std::vector<std::string> names = {"encoder.0.weight", "classifier.weight", "classifier.bias"};
  EXPECT_EQ(nearest("clasifier.*", names, std::string::npos), "classifier.weight");
  EXPECT_EQ(nearest("*.bais", names, std::string::npos), "classifier.bias");
  EXPECT_EQ(nearest("qqqqqqqqqqqqqqqqqq", names, 5), "");
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("a*", ""), 1u);
}

/// A resolved text without what differs between two texts of the same values: the title and the marks of defaults.
std::string unmarked(const std::string& text) {
  return std::regex_replace(text.substr(text.find('\n') + 1), std::regex("  # default\n"), "\n");
}

TEST(Resolved, reads_back_as_the_same_text) {
  const std::string text =
      "run: {output: 'a \"b\" \\ c', seed: 7}\nmodel: {preset: base, layers: 3}\ndata: {corpus: [x, 'y z']}\n"
      "freeze: {step: 12}\ncompression: {group: 96, scale: l2}\noptimizer: {lr: 3.0e-4, clip: 0.1}\n";
  const std::string first = resolved(parsed(text));
  const std::string second = resolved(parsed(first));
  EXPECT_EQ(unmarked(second), unmarked(first));
  EXPECT_EQ(resolved(parsed(second)), second);
  EXPECT_EQ(values(parsed(first)), values(parsed(text)));
}

TEST(Resolved, prints_numbers_as_people_write_them) {
  for (const char* number : {"100", "0.001", "123456", "0.999999", "0.0004", "1e-08", "0.1", "1e+07", "0.12345678901"})
    EXPECT_EQ(values(parsed(std::string("quadratic: {noise: ") + number + "}")).at("quadratic.noise"), number);
}

TEST(Resolved, marks_defaults) {
  const std::string text = resolved(parsed("train:\n  steps: 1000\n", {"optimizer.lr=0.5"}));
  EXPECT_NE(text.find("  steps: 1000\n"), std::string::npos) << "given with its default's value";
  EXPECT_NE(text.find("  lr: 0.5\n"), std::string::npos) << "given by --set";
  EXPECT_NE(text.find("  batch: 32  # default\n"), std::string::npos);
  EXPECT_NE(text.find("a.yaml"), std::string::npos);
  EXPECT_EQ(text.find("  # default"), text.find("  # default", text.find("backend:")));
}

TEST(Resolved, inputs_of_the_repository_read_back) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test::source_directory() + "/inputs")) {
    if (entry.path().extension() != ".yaml") continue;
    SCOPED_TRACE(entry.path());
    ++files;
    std::ostringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    const Input input = parsed(text.str());
    EXPECT_EQ(values(parsed(resolved(input))), values(input));
  }
  EXPECT_GT(files, 0);
}

TEST(Differences, name_what_is_computed_and_nothing_else) {
  Input one;
  for (const Section& section : keys(one))
    for (const Key& key : section.keys) {
      // Some other value of each key.
      std::string other = key.print();
      for (const std::string& candidate :
           {std::string("2"), std::string("[{pattern: a}]"), std::string("[64]"), std::string("[other.txt]"),
            std::string("64"), std::string("9"), std::string("2048"), std::string("0.25"), std::string("true"),
            std::string("false"), std::string("other.txt"), key.allowed.substr(0, key.allowed.find(',')),
            key.allowed.substr(key.allowed.rfind(' ') + 1)})
        if (refusal(one_key(key, candidate)).empty() &&
            values(parsed(one_key(key, candidate))).at(key.path()) != key.print())
          other = candidate;
      ASSERT_NE(other, key.print()) << key.path();
      const Input changed = parsed(one_key(key, other)), unchanged = parsed(minimal);
      const bool is_free = (key.section == "run" && key.name != "seed") || key.section == "checkpoint" ||
                           (key.section == "comm" && key.name.rfind("dense_", 0) != 0) || key.section == "bench" ||
                           key.section == "faults" || key.path() == "train.steps" ||
                           key.path() == "train.accumulation" || key.path() == "train.validate_every" ||
                           key.path() == "train.validation_batch" || key.path() == "train.target_loss" ||
                           key.path() == "train.loss_at_most" || key.path() == "freeze.from" ||
                           key.path() == "data.cache" || key.path() == "workload.compute_time_ms" ||
                           key.path() == "model.quantization.record_every";
      const std::vector<std::string> found = differences(unchanged, changed);
      EXPECT_EQ(found.empty(), is_free) << key.path();
      if (!is_free) {
        EXPECT_EQ(found.front().rfind(key.section + ".", 0), 0u) << found.front();
      }
      EXPECT_TRUE(differences(changed, changed).empty());
    }
  EXPECT_EQ(differences(parsed("optimizer: {lr: 0.5}"), parsed("run: {seed: 2}")),
            (std::vector<std::string>{"run.seed (1, 2)", "optimizer.lr (0.5, 0.001)"}));
  EXPECT_EQ(differences(parsed("optimizer: {groups: [{pattern: a, lr_factor: 2}]}"), parsed(minimal)),
            (std::vector<std::string>{"optimizer.groups ([{pattern: \"a\", lr_factor: 2}], [])"}));
}

TEST(Parse, takes_values_from_text_and_overrides) {
  const Input input = parsed("# comment\ntrain:\n  steps: 5   # five\nfreeze:\n",
                             {"train.batch=8", "train.batch=16", "run.output=a=b.c", "freeze.step=auto"});
  EXPECT_EQ(input.train.steps, 5);
  EXPECT_EQ(input.train.batch, 16) << "the last one holds";
  EXPECT_EQ(input.run.output, "a=b.c");
  EXPECT_EQ(input.freeze.step.word, "auto");
  EXPECT_EQ(input.where("train.steps"), "a.yaml:3:3");
  EXPECT_EQ(input.where("train.batch"), "--set train.batch=16");
  EXPECT_EQ(input.where("run.seed").rfind("a.yaml (", 0), 0u);
  EXPECT_EQ(parsed("train:\n  steps: 5\n", {"train.steps=6"}).train.steps, 6) << "an override goes over the file";
  EXPECT_EQ(parsed("train:\r\n  steps: 5\r\n  batch: 3\r\n").train.batch, 3) << "line ends of Windows";
  expect_refused(refusal(std::string("\xFF\xFEt\0r\0", 6)), "a.yaml", {"UTF-16", "iconv"});
  EXPECT_EQ(parsed("train:\r  steps: 5\r  batch: 3\r").train.batch, 3) << "line ends of old Macs";
  EXPECT_EQ(parsed("\xEF\xBB\xBFtrain:\n  batch: 3").train.batch, 3) << "a byte order mark, and no line end";
}

TEST(Parse, takes_sections_inside_of_sections) {
  const Input input = parsed("model:\n  layers: 3\n  quantization: {kind: fqt, exclude: [first, 'encoder.1.*']}\n",
                             {"model.quantization.bits=8"});
  EXPECT_EQ(input.model.layers, 3);
  EXPECT_EQ(input.model.quantization.kind, QuantizationKind::fqt);
  EXPECT_EQ(input.model.quantization.bits, 8);
  EXPECT_EQ(input.model.quantization.exclude, (std::vector<std::string>{"first", "encoder.1.*"}));
  EXPECT_EQ(input.where("model.quantization.kind"), "a.yaml:3:18");
  const auto refuses = [](const std::string& text, const std::vector<std::string>& parts,
                          const std::vector<std::string>& overrides = {}) {
    const std::string message = refusal(text, overrides);
    for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  refuses("model.quantization:\n  kind: fqt\n", {"a.yaml:1:1", "inside of section 'model'", "below 'model:'"});
  refuses("model:\n  quantization: fqt\n", {"a.yaml:2:3", "section 'model.quantization' is not a map"});
  refuses("model:\n  quantisation: {kind: fqt}\n", {"a.yaml:2:3", "did you mean 'model.quantization'?"});
  refuses("model:\n  quantization: {knd: fqt}\n", {"a.yaml:2:18", "did you mean 'model.quantization.kind'?"});
  refuses("train: {steps: 1}\n", {"unknown key 'model.quantization'"}, {"model.quantization=fqt"});
  const Input dotted = parsed("model:\n  layers: 3\n  quantization.kind: fqt\n  quantization.bits: 2\n");
  EXPECT_EQ(dotted.model.quantization.kind, QuantizationKind::fqt);
  EXPECT_EQ(dotted.model.quantization.bits, 2);
  EXPECT_EQ(dotted.where("model.quantization.bits"), "a.yaml:4:3");
  expect_refused(refusal("model:\n  quantization.kindd: fqt\n"), "a.yaml:2:3", {"model.quantization.kindd", "kind'"});
  expect_refused(refusal("model:\n  quantization.kind: fqt\n  quantization: {kind: qat}\n"), "a.yaml:3:18", {"twice"});
  expect_refused(refusal("train.steps: 5\n"), "a.yaml:1:1", {"'train.steps'", "write 'steps:' below 'train:'"});
}

TEST(Parse, presets_fill_what_is_not_given) {
  const Input base = parsed("model: {preset: base}");
  EXPECT_EQ(base.model.layers, 12);
  EXPECT_EQ(base.model.hidden, 768);
  EXPECT_EQ(base.model.heads, 12);
  EXPECT_EQ(base.model.feed_forward, 3072);
  EXPECT_EQ(base.model.positions, 512);
  const Input large = parsed("model: {preset: large, layers: 2, vocabulary: 30522}");
  EXPECT_EQ(large.model.layers, 2);
  EXPECT_EQ(large.model.hidden, 1024);
  EXPECT_EQ(large.model.heads, 16);
  EXPECT_EQ(large.model.feed_forward, 4096);
  EXPECT_EQ(large.model.vocabulary, 30522);
}

TEST(Parse, refuses_with_line_and_column) {
  const struct {
    const char* text;
    const char* place;
    std::vector<std::string> parts;
  } cases[] = {
      {"train:\n  stesp: 5\n", "a.yaml:2:3", {"train.stesp", "did you mean 'train.steps'"}},
      {"trian:\n  steps: 5\n", "a.yaml:1:1", {"'trian'", "did you mean 'train'"}},
      {"train:\n  lr: 5\n", "a.yaml:2:3", {"train.lr", "did you mean 'optimizer.lr'"}},
      {"train:\n  zzzzzzzzzzzz: 5\n", "a.yaml:2:3", {"train.zzzzzzzzzzzz", "steps", "batch"}},
      {"qqqqqqqq:\n  steps: 5\n", "a.yaml:1:1", {"'qqqqqqqq'", "train", "optimizer"}},
      {"# one\n\ntrain:\n  batch: 4\n\n  steps: -1\n", "a.yaml:6:3", {"train.steps", "-1", "≥ 1"}},
      {"train: {steps: 5, batch: 0}\n", "a.yaml:1:19", {"train.batch", "0"}},
      // MPI counts elements in an int; `bench collective` takes no longer vectors.
      {"bench: {largest: 2147483648}\n", "a.yaml:1:9", {"bench.largest", "out of range", "give at most 2147483647"}},
      {"run:\n  seed: 1\ntrain:\n    steps: many\n", "a.yaml:4:5", {"train.steps", "'many'", "integer"}},
      {"train:\n  steps: 5\n  batch: 2\n  steps: 6\n", "a.yaml:4:3", {"train.steps", "twice", "a.yaml:2:3"}},
      {"train:\n  steps: 5\nrun:\n  seed: 1\ntrain:\n  batch: 2\n", "a.yaml:5:1", {"train", "twice", "a.yaml:1:1"}},
      {"train:\n  steps:\n", "a.yaml:2:3", {"train.steps", "no value"}},
      {"train:\n  steps: [1, 2]\n", "a.yaml:2:3", {"train.steps", "list"}},
      {"train:\n  steps: {a: 1}\n", "a.yaml:2:3", {"train.steps", "map"}},
      {"train: 5\n", "a.yaml:1:1", {"'train'", "not a map"}},
      {"train: [1]\n", "a.yaml:1:1", {"'train'", "not a map"}},
      {"run:\n  seed: 1\n? [a]\n: 1\n", "a.yaml:3:3", {"unknown section"}},
      {"warmup:\n  steps: 3\n", "a.yaml:1:1", {"was renamed", "'freeze'", "'step'"}},
      {"comm:\n  collective: dense\n", "a.yaml:2:3", {"was renamed", "compression.compressor: none"}},
      {"checkpoint:\n  background: true\n", "a.yaml:2:3", {"was removed", "leave it out"}},
      {"predict:\n  ranks: 8\n", "a.yaml:1:1", {"was moved", "scripts/predict.py"}},
      {"- train\n", "a.yaml:1:1", {"not a map"}},
      {"train\n", "a.yaml:1:1", {"not a map"}},
      {"train:\n  <<: {steps: 5}\n", "a.yaml:2:3", {"train.<<"}},
      {"", "a.yaml", {"empty"}},
      {"# nothing\n", "a.yaml", {"empty"}},
      {"---\n", "a.yaml", {"empty"}},
      {"train:\n  steps: 5\n---\ntrain:\n  steps: 6\n", "a.yaml:3:1", {"more than one", "'---'"}},
      {"train: {steps: 5}}\nrun: {seed: 2}\n", "a.yaml:1:18", {"not YAML"}},
      {", train\n", "a.yaml:1:1", {"more than one", "comma"}},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.text);
    expect_refused(refusal(one.text), one.place, one.parts);
  }
}

TEST(Parse, refuses_what_is_not_yaml) {
  for (const char* text :
       {"train: {steps: 5\n", "train: [1, 2\n", "train: \"open\n", "a: b: c\n", "train:\n  - a\n  b: c\n", "*unknown\n",
        "train: *a\n", "%YAML 9\n", "train: !!int [\n", "{", "]", "\"", "&a", ": :", "? ?"}) {
    SCOPED_TRACE(text);
    const std::string message = refusal(text);
    EXPECT_EQ(message.rfind("a.yaml", 0), 0u) << message;
    EXPECT_NE(message.find("\n  remedy: "), std::string::npos) << message;
  }
  // The line is the parser's; which column of it a slip belongs to depends on the parser's version.
  for (const char* text : {"train:\n\tsteps: 5\n", "train:\n  steps: 5\n batch: 6\n"}) {
    const std::string message = refusal(text);
    EXPECT_EQ(message.rfind(text[7] == '\t' ? "a.yaml:2:" : "a.yaml:3:", 0), 0u) << message;
    EXPECT_NE(message.find("spaces only"), std::string::npos) << message;
  }
}

TEST(Parse, refuses_hostile_texts) {
  const auto nested = [](const char* opening, int times) {
    std::string text = "train: ";
    for (int i = 0; i < times; ++i) text += opening;
    return text;
  };
  for (const std::string& text :
       {nested("[", 100000), nested("{a: ", 100000), nested("\n - ", 2000), std::string(1000000, 'a'),
        "train:\n  " + std::string(100000, 'b') + ": 1\n", "train:\n  steps: " + std::string(100000, '9') + "\n",
        std::string("train:\n  steps: 5\0 6\n", 21), std::string("\xff\xfe\x00\x01", 4), std::string("\x80\x81")}) {
    const std::string message = refusal(text);
    EXPECT_EQ(message.rfind("a.yaml", 0), 0u) << message.substr(0, 200);
    EXPECT_LT(message.size(), 2000u) << "of " << message.substr(0, 200);
  }
}

TEST(Parse, refuses_wrong_overrides) {
  const struct {
    const char* text;
    std::vector<std::string> parts;
  } cases[] = {
      {"train.steps", {"section.key=value"}},
      {"steps=5", {"section.key=value"}},
      {"=", {"section.key=value"}},
      {"", {"section.key=value"}},
      {"steps=a.b", {"section.key=value"}},
      {"trian.steps=5", {"'trian'", "did you mean 'train'"}},
      {"train.stesp=5", {"train.stesp", "did you mean 'train.steps'"}},
      {".=", {"unknown section"}},
      {"train.steps=", {"no value"}},
      {"train.steps=x", {"train.steps", "'x'"}},
      {"train.steps=0", {"train.steps", "≥ 1"}},
      {"train.steps={a: 1}", {"map"}},
      {"train.steps=[1, 2", {"not YAML"}},
      {"train.steps=5\n---\n6", {"not an integer"}},
      {"data.corpus=[a]\n---\n[b]", {"more than one"}},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.text);
    const std::string message = refusal(minimal, {one.text});
    EXPECT_EQ(message.rfind("--set ", 0), 0u) << message;
    expect_refused("x: " + message, "x", one.parts);
  }
}

TEST(Check, takes_defaults_and_ends) {
  EXPECT_EQ(refusal_of_check(minimal, 1), "");
  EXPECT_EQ(refusal_of_check("train: {batch: 24, accumulation: 2}", 4), "");
  EXPECT_EQ(refusal_of_check("train: {steps: 5}\nschedule: {warmup_steps: 5}\nfreeze: {step: 4}", 1), "");
  EXPECT_EQ(refusal_of_check("train: {steps: 5}\nschedule: {warmup_steps: 4}", 1), "");
  EXPECT_EQ(refusal_of_check("train: {steps: 2}", 1), "");
  EXPECT_EQ(refusal_of_check("train: {steps: 5}\nfreeze: {at_most: 1}", 1), "") << "the last step is left";
  for (const char* text : {"train: {steps: 1}", "train: {steps: 1}\nfreeze: {step: 300}",
                           "train: {steps: 1}\nschedule: {warmup_steps: 1}\noptimizer: {algorithm: onebit_lamb}"})
    EXPECT_EQ(refusal_of_check(text, 1), "") << "one step is a trial: " << text;
  EXPECT_EQ(refusal_of_check("optimizer: {algorithm: adam}\ntrain: {steps: 5}\nschedule: {warmup_steps: 5}", 1), "");
  EXPECT_EQ(refusal_of_check("optimizer: {algorithm: adam}\nfreeze: {step: 2000}", 1), "") << "adam has no T_w";
  EXPECT_EQ(refusal_of_check("compression: {group: 64}", 1), "");
  EXPECT_EQ(refusal_of_check("model: {sequence: 128}", 1), "");
  EXPECT_EQ(refusal_of_check("workload: {kind: quadratic}\nmodel: {heads: 7, sequence: 4096}", 1), "")
      << "a model that is not used";
  EXPECT_EQ(refusal_of_check("workload: {kind: replay}\nreplay: {file: a.h5}", 1), "");
  EXPECT_EQ(refusal_of_check("workload: {kind: replay}\nreplay: {file: a.h5}", 3), "") << "replay has no samples";
}

TEST(LatestFreeze, is_a_share_of_the_run_that_leaves_steps_to_compress) {
  Input input;
  const long expected[] = {1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3};
  for (int steps = 1; steps <= 11; ++steps) {
    input.train.steps = steps;
    EXPECT_EQ(latest_freeze(input), expected[steps - 1]) << steps << " steps";
  }
  for (int steps = 2; steps <= 3000; ++steps) {
    input.train.steps = steps;
    EXPECT_LE(2 * latest_freeze(input), steps) << steps << ": half of the steps and more are compressed";
  }
  input.train.steps = 100;
  input.freeze.at_most = 0.07;  // 0.07 · 100 is a little more than 7
  EXPECT_EQ(latest_freeze(input), 7);
  input.freeze.at_most = 1;
  EXPECT_EQ(latest_freeze(input), 99);
  input.freeze.at_most = 1e-9;
  EXPECT_EQ(latest_freeze(input), 1);
  input.schedule.warmup_steps = 30;
  EXPECT_EQ(latest_freeze(input), 30);
  input.freeze.step = {"", 12};
  EXPECT_EQ(latest_freeze(input), 12);
}

TEST(Check, refuses_combinations) {
  const struct {
    const char* text;
    int ranks;
    const char* place;
    std::vector<std::string> parts;
  } cases[] = {
      {"train:\n  batch: 10\n", 4, "a.yaml:2:3", {"train.batch", "10", "4 ranks", "multiple of 4"}},
      {"train:\n  accumulation: 3\n", 4, "a.yaml (train.batch has its default)", {"multiple of 12"}},
      {"train:\n  batch: 2\n", 4, "a.yaml:2:3", {"train.batch"}},
      {"workload: {kind: quadratic}\n", 3, "a.yaml (train.batch has its default)", {"3 ranks"}},
      {"train:\n  steps: 5\nschedule:\n  warmup_steps: 6\n", 1, "a.yaml:4:3", {"schedule.warmup_steps", "5"}},
      {"train:\n  steps: 5\nfreeze:\n  step: 6\n", 1, "a.yaml:4:3", {"freeze.step", "5"}},
      {"train:\n  steps: 5\nfreeze:\n  step: 5\n", 1, "a.yaml:4:3", {"lower freeze.step to less than", "(5)"}},
      {"train:\n  steps: 5\nschedule:\n  warmup_steps: 5\n",
       1,
       "a.yaml:4:3",
       {"lower schedule.warmup_steps to less than", "(5)", "auto"}},
      {"freeze:\n  at_most: 0\n", 1, "a.yaml:2:3", {"freeze.at_most", "out of range"}},
      {"freeze:\n  at_most: 1.1\n", 1, "a.yaml:2:3", {"freeze.at_most", "out of range"}},
      {"optimizer:\n  algorithm: onebit_adam_32bit\nfreeze:\n  step: 1001\n", 1, "a.yaml:4:3", {"freeze.step"}},
      {"freeze:\n  from: state.h5\noptimizer:\n  algorithm: sgd\n", 1, "a.yaml:2:3", {"sgd", "variance"}},
      {"optimizer:\n  bias_correction: true\n  algorithm: local_sgd\n", 1, "a.yaml:2:3", {"local_sgd", "correction"}},
      {"optimizer:\n  bias_correction: true\n  algorithm: onebit_lion\n",
       1,
       "a.yaml:2:3",
       {"onebit_lion", "correction"}},
      {"compression:\n  group: 33\n", 1, "a.yaml:2:3", {"32"}},
      {"compression:\n  scale_residual_by_lr: true\n  error_feedback: false\n", 1, "a.yaml:2:3", {"no residuals"}},
      {"compression:\n  scale_residual_by_lr: true\noptimizer:\n  algorithm: zero_one_adam\n",
       1,
       "a.yaml:2:3",
       {"zero_one_adam", "algorithms onebit_adam, double_squeeze"}},
      {"optimizer: {algorithm: sharded_adam}\ncomm:\n  collective: hierarchical\n",
       1,
       "a.yaml:3:3",
       {"comm.collective", "sharded_adam", "flat"}},
      {"optimizer: {algorithm: sharded_adam}\ncomm:\n  dense_type: bf16\n",
       1,
       "a.yaml:3:3",
       {"comm.dense_type", "sharded_adam", "fp32"}},
      {"run:\n  output: ''\n", 1, "a.yaml:2:3", {"run.output"}},
      {"workload: {kind: dcgan}\nschedule:\n  decay: averaging\n", 1, "a.yaml:3:3", {"statistics", "mixer"}},
      {"model:\n  heads: 5\n", 1, "a.yaml:2:3", {"5 heads", "64"}},
      {"model:\n  hidden: 65\n", 1, "a.yaml (model.heads has its default)", {"2 heads", "65"}},
      {"model:\n  quantization: {kind: qat, record_every: 5}\n", 1, "a.yaml:2:29", {"quantises no gradient", "fqt"}},
      {"workload: {kind: quadratic}\nmodel:\n  quantization: {kind: fqt, record_every: 5}\n",
       1,
       "a.yaml:3:29",
       {"quantises no gradient", "fqt"}},
      {"model:\n  sequence: 129\n", 1, "a.yaml:2:3", {"129", "128"}},
      {"optimizer:\n  algorithm: onebit_lamb\nfreeze:\n  step: 0\n", 1, "a.yaml:4:3", {"LAMB", "at least a step"}},
      {"freeze:\n  step: 0\n", 1, "a.yaml:2:3", {"freeze.from", "no element would move", "freeze.step to 1"}},
      {"optimizer:\n  algorithm: server_onebit_adam\nfreeze: {step: 0}\ncheckpoint: {restart: auto}\n",
       1,
       "a.yaml:3:10",
       {"freeze.from"}},
      {"optimizer:\n  algorithm: onebit_lamb\nfreeze:\n  from: a.h5\n", 1, "a.yaml:4:3", {"onebit_lamb"}},
      {"lamb:\n  min_coefficient: 2\n  max_coefficient: 1\n", 1, "a.yaml:2:3", {"lamb.max_coefficient"}},
      {"faults:\n  kind: nan\n  rank: 2\n", 2, "a.yaml:3:3", {"no rank 2", "below 2"}},
      {"faults:\n  kind: nan\n  step: 0\n", 2, "a.yaml:3:3", {"no step 0", "kind hang"}},
      {"bench: {smallest: 100, largest: 10}\n", 1, "a.yaml:1:9", {"bench.smallest (100)", "bench.largest (10)"}},
      {"bench: {largest: 10}\n", 1, "a.yaml:1:9", {"bench.smallest (1024)", "bench.largest (10)"}},
      {"workload:\n  kind: replay\n", 1, "a.yaml (replay.file has its default)", {"replay.file"}},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.text);
    expect_refused(refusal_of_check(one.text, one.ranks), one.place, one.parts);
  }
}

TEST(Effects, keys_without_one_are_named) {
  const struct {
    const char *text, *key;  ///< an empty key: all have an effect
  } cases[] = {
      {"optimizer: {algorithm: sgd}\ncompression: {compressor: nbit}", "compression.compressor"},
      {"optimizer: {algorithm: sgd, beta1: 0.5}", "optimizer.beta1"},
      {"optimizer: {algorithm: momentum_sgd, beta1: 0.5}", ""},
      {"optimizer: {algorithm: momentum_sgd, beta2: 0.5}", "optimizer.beta2"},
      {"optimizer: {algorithm: onebit_lion, beta2: 0.5}", ""},
      {"optimizer: {epsilon: 1e-6}", ""},
      {"optimizer: {algorithm: signum, epsilon: 1e-6}", "optimizer.epsilon"},
      {"optimizer: {algorithm: adam}\nfreeze: {step: 5}", "freeze.step"},
      {"freeze: {step: 5, at_most: 0.3}", "freeze.at_most"},
      {"freeze: {step: auto, at_most: 0.3}", ""},
      {"lamb: {min_coefficient: 0.1}", "lamb.min_coefficient"},
      {"optimizer: {algorithm: onebit_lamb}\nlamb: {min_coefficient: 0.1}", ""},
      {"zero_one: {local_step_clipper: 2}", "zero_one.local_step_clipper"},
      {"diloco: {outer_lr: 0.5}", "diloco.outer_lr"},
      {"optimizer: {local_steps: 3}", "optimizer.local_steps"},
      {"optimizer: {algorithm: diloco, local_steps: 3}", ""},
      {"optimizer: {variance_bits: 3}", "optimizer.variance_bits"},
      {"optimizer: {vote: average}", "optimizer.vote"},
      {"optimizer: {clip_norm: last_step}", "optimizer.clip_norm"},
      {"schedule: {rate: 0.5}", "schedule.rate"},
      {"schedule: {decay: step, rate: 0.5, every: 9}", ""},
      {"compression: {bits: 4}", "compression.bits"},
      {"compression: {compressor: nbit, bits: 4}", ""},
      {"compression: {compressor: nbit, scale: l2}", "compression.scale"},
      {"compression: {compressor: column, group: 64}", "compression.group"},
      {"compression: {reconstruction: range}", "compression.reconstruction"},
      {"compression: {compressor: none, error_feedback: false}", "compression.error_feedback"},
      {"comm: {message_bytes: 4096}", "comm.message_bytes"},
      {"comm: {exchange: pairwise, message_bytes: 4096}", ""},
      {"workload: {parameters: 10}", "workload.parameters"},
      {"workload: {kind: quadratic}\nmodel: {layers: 3}", "model.layers"},
      {"workload: {kind: quadratic}\nmodel: {quantization: {kind: fqt}}", "model.quantization.kind"},
      {"workload: {kind: dcgan}\nmodel: {quantization: {kind: fqt}}", "model.quantization.kind"},
      {"model: {quantization: {bits: 4}}", "model.quantization.bits"},
      {"model: {quantization: {kind: qat, bits: 4}}", "model.quantization.bits"},
      {"model: {quantization: {kind: fqt, bits: 4, pruning: topk}}", ""},
      {"model: {quantization: {kind: fqt, bits: 1, pruning: topk}}", "model.quantization.pruning"},
      {"model: {quantization: {kind: fqt, group: position}}", "model.quantization.group"},
      {"workload: {kind: images}\nmodel: {quantization: {kind: fqt, bits: 2, pruning: topk, group: position}}", ""},
      {"workload: {kind: images}\nmodel: {quantization: {kind: qat, group: position}}", "model.quantization.group"},
      {"workload: {kind: images}\nmodel: {layers: 3}", "model.layers"},
      {"workload: {kind: images}\nimages: {network: mixer, norm_samples: 4}", "images.norm_samples"},
      {"workload: {kind: images}\nimages: {network: vgg16, norm_samples: 4}", ""},
      {"model: {pooling: mean}", "model.pooling"},
      {"model: {architecture: gpt, second_text: 8}", "model.second_text"},
      {"model: {architecture: bert, second_text: 8}", ""},
      {"data: {vocabulary: 400}", "data.vocabulary"},
      {"data: {labelled: a.tsv}", "data.labelled"},
      {"quadratic: {noise: 0}", "quadratic.noise"},
      {"replay: {file: a.h5}", "replay.file"},
      {"workload: {kind: synthetic}\ntrain: {target_loss: 1}", "train.target_loss"},
      {"run: {backend: serial, threads: 2}", "run.threads"},
      {"run: {threads: 2}", ""},
      {"faults: {rank: 0}", "faults.rank"},
      {"bench: {factor: 2}", ""},
  };
  for (const auto& one : cases) {
    const std::vector<std::string> messages = without_effect(parsed(one.text));
    const std::string key = one.key;
    ASSERT_EQ(messages.size(), key.empty() ? 0u : 1u) << one.text;
    if (key.empty()) continue;
    EXPECT_NE(messages[0].find(": " + key + " has no effect here: it is for "), std::string::npos) << messages[0];
  }
  EXPECT_EQ(
      without_effect(parsed(minimal, {"lamb.min_coefficient=0.1"}))[0].rfind("--set lamb.min_coefficient=0.1: ", 0),
      0u);
}

/// A warning that is always printed helps nobody: each key has an effect somewhere, and its default input is silent.
TEST(Effects, every_rule_is_for_a_key) {
  EXPECT_TRUE(without_effect(parsed(minimal)).empty());
  for (const char* name :
       {"first", "bert_tiny", "gpt_small", "quickstart_adam", "quickstart_onebit_adam", "quickstart_zero_one_adam",
        "quickstart_onebit_muon", "fine_tune", "quadratic", "synthetic_step"}) {
    std::ifstream file(test::source_directory() + "/inputs/" + name + ".yaml");
    std::ostringstream text;
    text << file.rdbuf();
    for (const std::string& message : without_effect(parsed(text.str()))) ADD_FAILURE() << name << ": " << message;
  }
}

TEST(Documentation, is_current) {
  std::ifstream file(test::source_directory() + "/docs/reference/input.md");
  std::istringstream declared(documentation());
  std::string line, expected;
  for (int number = 1; std::getline(declared, expected); ++number) {
    std::getline(file, line);
    ASSERT_EQ(line, expected) << "docs/reference/input.md:" << number
                              << ": make it again: onebit list --input-keys > docs/reference/input.md";
  }
  EXPECT_FALSE(std::getline(file, line)) << "docs/reference/input.md ends with what nobody declares: " << line;
}

TEST(Documentation, tables_have_five_columns_and_every_key) {
  std::istringstream text(documentation());
  int rows = 0;
  for (std::string line; std::getline(text, line);) {
    if (line.empty() || line.front() != '|') continue;
    EXPECT_EQ(std::count(line.begin(), line.end(), '|'), 6) << line;
    rows += line.rfind("| `", 0) == 0;
  }
  EXPECT_EQ(rows, static_cast<int>(values(Input()).size()));
}

TEST(Names, are_those_of_the_input) {
  EXPECT_EQ(to_string(Backend::openmp), "openmp");
  EXPECT_EQ(to_string(WorkloadKind::quadratic), "quadratic");
  for (const std::string& name : algorithm_names()) {
    const Input input = parsed("optimizer: {algorithm: " + name + "}");
    EXPECT_EQ(input.optimizer.algorithm, name);
    const std::set<std::string> freezing = {"onebit_adam", "onebit_adam_32bit", "onebit_lamb", "sharded_onebit_adam",
                                            "server_onebit_adam"};
    EXPECT_EQ(traits(name).freezes(), freezing.count(name) == 1) << name;
  }
}

}  // namespace
}  // namespace onebit::config
