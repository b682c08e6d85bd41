#include "image.h"

// After stdio, which libjpeg's header needs.
#include <cstdio>

#include <jpeglib.h>
#include <png.h>

#include <cstdlib>

namespace {

constexpr int kJpegQuality = 90;

// libjpeg's own handler ends the program without a name.
[[noreturn]] void on_jpeg_error(j_common_ptr codec) {
  char message[JMSG_LENGTH_MAX];
  codec->err->format_message(codec, message);
  fail(std::string("JPEG: ") + static_cast<const char *>(codec->client_data) + ": " + message);
}

Image decode_jpeg(const std::string &name, const uint8_t *bytes, size_t length) {
  jpeg_decompress_struct codec;
  jpeg_error_mgr errors;
  codec.err = jpeg_std_error(&errors);
  errors.error_exit = on_jpeg_error;
  codec.client_data = const_cast<char *>(name.c_str());
  jpeg_create_decompress(&codec);
  jpeg_mem_src(&codec, bytes, length);
  jpeg_read_header(&codec, TRUE);
  codec.out_color_space = JCS_RGB;
  jpeg_start_decompress(&codec);
  Image image{codec.output_width, codec.output_height, {}};
  image.rgb.resize(size_t{3} * image.width * image.height);
  while (codec.output_scanline < codec.output_height) {
    JSAMPROW row = image.rgb.data() + size_t{3} * image.width * codec.output_scanline;
    jpeg_read_scanlines(&codec, &row, 1);
  }
  jpeg_finish_decompress(&codec);
  jpeg_destroy_decompress(&codec);
  return image;
}

Image decode_png(const std::string &name, const uint8_t *bytes, size_t length) {
  png_image codec{};
  codec.version = PNG_IMAGE_VERSION;
  if (!png_image_begin_read_from_memory(&codec, bytes, length)) fail("PNG: " + name + ": " + codec.message);
  codec.format = PNG_FORMAT_RGB;
  Image image{codec.width, codec.height, Bytes(PNG_IMAGE_SIZE(codec))};
  if (!png_image_finish_read(&codec, nullptr, image.rgb.data(), 0, nullptr)) fail("PNG: " + name + ": " + codec.message);
  return image;
}

}  // namespace

Image decode(const std::string &name, const uint8_t *bytes, size_t length) {
  bool is_png = length >= 8 && png_sig_cmp(bytes, 0, 8) == 0;
  return is_png ? decode_png(name, bytes, length) : decode_jpeg(name, bytes, length);
}

Bytes encode_jpeg(const Image &image) {
  jpeg_compress_struct codec;
  jpeg_error_mgr errors;
  codec.err = jpeg_std_error(&errors);
  jpeg_create_compress(&codec);
  unsigned char *buffer = nullptr;
  unsigned long length = 0;
  jpeg_mem_dest(&codec, &buffer, &length);
  codec.image_width = image.width;
  codec.image_height = image.height;
  codec.input_components = 3;
  codec.in_color_space = JCS_RGB;
  jpeg_set_defaults(&codec);
  jpeg_set_quality(&codec, kJpegQuality, TRUE);
  jpeg_start_compress(&codec, TRUE);
  while (codec.next_scanline < codec.image_height) {
    auto *row = const_cast<uint8_t *>(image.rgb.data()) + size_t{3} * image.width * codec.next_scanline;
    jpeg_write_scanlines(&codec, &row, 1);
  }
  jpeg_finish_compress(&codec);
  Bytes bytes(buffer, buffer + length);
  jpeg_destroy_compress(&codec);
  std::free(buffer);
  return bytes;
}

Bytes encode_png(const Image &image) {
  png_image codec{};
  codec.version = PNG_IMAGE_VERSION;
  codec.width = image.width;
  codec.height = image.height;
  codec.format = PNG_FORMAT_RGB;
  png_alloc_size_t length = 0;
  if (!png_image_write_to_memory(&codec, nullptr, &length, 0, image.rgb.data(), 0, nullptr)) fail(codec.message);
  Bytes bytes(length);
  if (!png_image_write_to_memory(&codec, bytes.data(), &length, 0, image.rgb.data(), 0, nullptr)) fail(codec.message);
  bytes.resize(length);
  return bytes;
}
