#pragma once
/// \file image_files.hpp
/// Labelled images of files in two formats, which are told apart by the content:
///
/// IDX, that of MNIST: the four bytes 00 00 08 03 for images of one channel or 00 00 08 04 for others, the extents N,
/// H, W and perhaps C, each of four bytes with the high one first, and the pixels, a byte each. The labels are in a
/// file of their own, which begins with 00 00 08 01 and N.
///
/// CIFAR-10's binary files: records of a label, 0 to 9, and the red, green and blue planes of 32 x 32 bytes.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace onebit::data {

/// Limit of C: colours with opacity. More channels are taken for images in the order N, C, H, W.
inline constexpr std::size_t most_channels = 4;

/// The file of labels that belongs to an IDX file of images: it has `labels` and `idx1` in its name where that one has
/// the last `images`, and `idx3` or `idx4`. Empty for a name without `images`.
std::string label_file(std::string images);

/// What all images of a run have in common.
struct ImageExtents {
  std::size_t height = 0, width = 0, channels = 0;

  /// Bytes of an image.
  std::size_t size() const { return height * width * channels; }
  bool operator==(const ImageExtents& other) const {
    return height == other.height && width == other.width && channels == other.channels;
  }
  /// "28 x 28 pixels of 1 channel"
  std::string words() const;
};

/// The images of a set, one file behind the other.
struct LabelledImages {
  ImageExtents extents;
  std::vector<std::uint8_t> pixels;      ///< (N, H, W, C)
  std::vector<std::uint8_t> labels;      ///< (N) as the files have them
  std::vector<std::size_t> ends;         ///< (files) number of images up to the end of each file
  std::vector<std::string> label_files;  ///< (files) which has the labels of each; that of CIFAR-10 itself
};

/// Reads a set. Each IDX file of images has its labels in `label_file`.
/// \throws InputError that names the file: it is missing, empty, truncated, compressed or in another format; its images
///         have other extents than those of the first file, or more channels than `most_channels`; its labels are
///         missing or not as many as its images; the set does not fit into memory
LabelledImages read_images(const std::vector<std::string>& files);

}  // namespace onebit::data
