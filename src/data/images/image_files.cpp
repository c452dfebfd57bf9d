#include "data/images/image_files.hpp"

#include <algorithm>
#include <cstdio>
#include <limits>

#include "base/error.hpp"
#include "base/system/activity.hpp"
#include "data/file_bytes.hpp"

namespace onebit::data {
namespace {

constexpr std::size_t cifar_side = 32, cifar_planes = 3, cifar_labels = 10;
constexpr std::size_t cifar_record = 1 + cifar_planes * cifar_side * cifar_side;
constexpr const char* known_formats = "name an IDX file (as MNIST's) or one of CIFAR-10's binary files";

/// Bytes of an IDX file in front of its elements.
constexpr std::size_t head_bytes(std::size_t dimensions) { return 4 + 4 * dimensions; }

/// The first bytes of a file, which decide what it is.
struct Head {
  std::string file;
  std::uintmax_t size;  ///< of the file
  std::string bytes;    ///< at most those of a header of four extents
};

/// \param content what the file should hold, for messages
Head read_head(const std::string& file, const char* content) {
  constexpr std::uintmax_t longest = head_bytes(4);
  Head head{file, checked_size(file, content), ""};
  head.bytes.resize(static_cast<std::size_t>(std::min(head.size, longest)));
  read_bytes(file, 0, head.bytes.data(), head.bytes.size());
  if (head.bytes.substr(0, 2) == "\x1F\x8B") throw InputError(file, "is compressed by gzip", "decompress it: gunzip");
  return head;
}

/// The number of extents of an IDX file of bytes; 0 for any other file.
std::size_t idx_dimensions(const Head& head) {
  const std::string magic("\0\0\x08", 3);
  return head.bytes.size() >= 4 && head.bytes.compare(0, 3, magic) == 0 ? static_cast<unsigned char>(head.bytes[3]) : 0;
}

/// "00 00 0D 03"
std::string hexadecimal(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes.substr(0, 4)) {
    char two[4];
    std::snprintf(two, sizeof two, "%02X ", static_cast<unsigned>(static_cast<unsigned char>(byte)));
    text += two;
  }
  return text.substr(0, text.size() - 1);
}

/// The extents of an IDX file. The rest of the file must have as many bytes as they say.
std::vector<std::size_t> idx_extents(const Head& head, std::size_t dimensions) {
  constexpr const char* copy_again = "copy or download it again";
  const std::size_t begin = head_bytes(dimensions);
  if (head.size < begin)
    throw InputError(head.file,
                     "is truncated: it ends after " + std::to_string(head.size) + " bytes, within its header",
                     copy_again);
  constexpr std::uintmax_t most = std::numeric_limits<std::uintmax_t>::max() / 2;  // stands for all larger ones
  std::uintmax_t expected = 1;
  std::vector<std::size_t> extents;
  std::string product;
  for (std::size_t i = 4; i < begin; i += 4) {
    std::size_t extent = 0;
    for (std::size_t byte = i; byte < i + 4; ++byte)
      extent = extent << 8 | static_cast<unsigned char>(head.bytes[byte]);
    extents.push_back(extent);
    expected = extent > 0 && expected > most / extent ? most : expected * extent;
    product += (i > 4 ? " x " : "") + std::to_string(extent);
  }
  if (expected == 0) throw InputError(head.file, "holds nothing: its extents are " + product, "leave it out");
  const std::uintmax_t rest = head.size - begin;
  if (rest != expected)
    throw InputError(head.file,
                     std::string(rest < expected ? "is truncated" : "is longer than it should be") +
                         ": its header says " + product + " bytes, and " + std::to_string(rest) + " follow",
                     copy_again);
  return extents;
}

/// A file of images before its pixels are read.
struct ImageFile {
  std::string name;
  std::size_t count, begin;  ///< images, and the place of the first pixel
  ImageExtents extents;
  bool is_cifar;
};

ImageFile inspected(const std::string& name) {
  const Head head = read_head(name, "images");
  const std::size_t dimensions = idx_dimensions(head);
  if (dimensions == 3 || dimensions == 4) {
    const std::vector<std::size_t> extents = idx_extents(head, dimensions);
    const ImageExtents image{extents[1], extents[2], dimensions == 4 ? extents[3] : 1};
    if (image.channels > most_channels)
      throw InputError(name,
                       "its images have " + std::to_string(image.channels) + " channels, and at most " +
                           std::to_string(most_channels) + " are possible",
                       "write the pixels in the order of images, rows, columns and channels");
    return {name, extents[0], head_bytes(dimensions), image, false};
  }
  if (dimensions == 1)
    throw InputError(name, "is an IDX file of labels, but should be one of images",
                     "name the file of images here, and this one where labels are named");
  if (head.size % cifar_record != 0)
    throw InputError(name,
                     "holds no images in a known format: it begins with the bytes " + hexadecimal(head.bytes) +
                         ", and not with 00 00 08 03 or 00 00 08 04 as IDX files do, and its " +
                         std::to_string(head.size) + " bytes are no whole number of CIFAR-10's records of " +
                         std::to_string(cifar_record) + " bytes (another format, or truncated)",
                     known_formats);
  const auto records = static_cast<std::size_t>(head.size / cifar_record);
  return {name, records, 0, {cifar_side, cifar_side, cifar_planes}, true};
}

/// Puts the channels of a pixel side by side.
/// \param pixels (count, 32, 32, 3) \param labels (count)
void read_cifar(const ImageFile& file, std::uint8_t* pixels, std::uint8_t* labels) {
  constexpr std::size_t plane = cifar_side * cifar_side;
  std::string bytes(file.count * cifar_record, '\0');
  read_bytes(file.name, 0, bytes.data(), bytes.size());
  for (std::size_t i = 0; i < file.count; ++i) {
    const char* const record = bytes.data() + i * cifar_record;
    labels[i] = static_cast<std::uint8_t>(record[0]);
    if (labels[i] >= cifar_labels)
      throw InputError(file.name,
                       "image " + std::to_string(i + 1) + " has the label " + std::to_string(labels[i]) +
                           ", but those of CIFAR-10 are 0 to 9 (another format?)",
                       known_formats);
    for (std::size_t place = 0; place < plane; ++place)
      for (std::size_t c = 0; c < cifar_planes; ++c)
        *pixels++ = static_cast<std::uint8_t>(record[1 + c * plane + place]);
  }
}

/// \param labels (count) those of the images of `file`
void read_labels(const std::string& name, const ImageFile& file, std::uint8_t* labels) {
  const Head head = read_head(name, "labels");
  const std::size_t dimensions = idx_dimensions(head);
  if (dimensions != 1)
    throw InputError(
        name,
        "is no IDX file of labels: it begins with the bytes " + hexadecimal(head.bytes) + ", and not with 00 00 08 01",
        dimensions >= 3 ? "name the file of labels here, and this one where images are named"
                        : "name the file of labels that belongs to " + file.name);
  const std::size_t count = idx_extents(head, dimensions)[0];
  if (count != file.count)
    throw InputError(
        name,
        "has " + std::to_string(count) + " labels, but " + file.name + " has " + std::to_string(file.count) + " images",
        "name the file of labels that belongs to it");
  read_bytes(name, head_bytes(dimensions), reinterpret_cast<char*>(labels), count);
}

}  // namespace

std::string ImageExtents::words() const {
  return std::to_string(height) + " x " + std::to_string(width) + " pixels of " + std::to_string(channels) +
         (channels == 1 ? " channel" : " channels");
}

std::string label_file(std::string images) {
  const auto replace = [&](const std::string& part, const char* by) {
    const std::size_t place = images.rfind(part);
    if (place != std::string::npos) images.replace(place, part.size(), by);
    return place != std::string::npos;
  };
  if (!replace("images", "labels")) return "";
  replace("idx3", "idx1");
  replace("idx4", "idx1");
  return images;
}

LabelledImages read_images(const std::vector<std::string>& files) {
  const Activity activity("OneBit::data::read");
  if (files.empty()) throw InputError("images", "no file is named", "name at least one file of images");
  const std::uintmax_t most = machine_memory();
  std::vector<ImageFile> found;
  LabelledImages set;
  std::size_t count = 0;
  for (const std::string& name : files) {
    const ImageFile& file = found.emplace_back(inspected(name));
    if (!(file.extents == found.front().extents))
      throw InputError(name,
                       "its images have " + file.extents.words() + ", but those of " + found.front().name + " have " +
                           found.front().extents.words(),
                       "name files whose images are of one size");
    count += file.count;
    if (count > most / file.extents.size())
      throw InputError(name,
                       "the images up to here have " + std::to_string(count) + " times " + file.extents.words() +
                           ", and this machine's memory holds " + std::to_string(most) + " bytes",
                       "use fewer or smaller files");
    set.ends.push_back(count);
    set.label_files.push_back(file.is_cifar ? name : label_file(name));
    if (set.label_files.back().empty())
      throw InputError(name, "has no labels: an IDX file of images holds none, and there is no 'images' in its name",
                       "put 'images' into its name, and call its file of labels the same but for 'labels' there");
  }

  set.extents = found.front().extents;
  set.pixels.resize(count * set.extents.size());
  set.labels.resize(count);
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::size_t first = set.ends[i] - found[i].count;
    std::uint8_t* const pixels = set.pixels.data() + first * set.extents.size();
    std::uint8_t* const labels = set.labels.data() + first;
    if (found[i].is_cifar) {
      read_cifar(found[i], pixels, labels);
    } else {
      read_labels(set.label_files[i], found[i], labels);
      read_bytes(found[i].name, found[i].begin, reinterpret_cast<char*>(pixels), found[i].count * set.extents.size());
    }
  }
  return set;
}

}  // namespace onebit::data
