// Images, decoded and encoded by libjpeg and libpng.
#pragma once

#include <string>

#include "objects.h"

struct Image {
  unsigned width = 0;
  unsigned height = 0;
  Bytes rgb;  // three bytes for each pixel, row by row
};

// A JPEG or PNG file's bytes; `name` is for messages.
Image decode(const std::string &name, const uint8_t *bytes, size_t length);
Bytes encode_jpeg(const Image &image);
Bytes encode_png(const Image &image);
