// Dense matrix multiplication, C = A·B, whose tiles are objects.
//
//     matmul WHERE [--expect HASH]
#include <cmath>
#include <cstring>

#include "program.h"

namespace {

constexpr const char *kUsage =
    "matmul WHERE [--expect HASH]\n"
    "  multiplies the matrices that generate WHERE matrix has stored, and checks the product with a random vector\n";

using Tile = std::vector<double>;

std::string tile_name(const char *matrix, size_t row, size_t column) {
  return numbered(numbered(matrix, row, 4, "/").c_str(), column, 4);
}

// Rows of a square tile, of its length in bytes.
size_t rows_of(size_t length) { return static_cast<size_t>(std::lround(std::sqrt(static_cast<double>(length / sizeof(double))))); }

void add_product(const Tile &a, const double *b, size_t rows, Tile &c) {
  for (size_t i = 0; i < rows; i++) {
    for (size_t k = 0; k < rows; k++) {
      double factor = a[i * rows + k];
      for (size_t j = 0; j < rows; j++) c[i * rows + j] += factor * b[k * rows + j];
    }
  }
}

// A tile of C: the tiles of a row of A and of a column of B come in turns.
Object multiply(Program &program, size_t tiles, size_t row, size_t column) {
  std::vector<std::string> names;
  for (size_t k = 0; k < tiles; k++) {
    names.push_back(tile_name("matrix/A/", row, k));
    names.push_back(tile_name("matrix/B/", k, column));
  }
  Tile a, b, c;
  program.load(names, true, [&](size_t index, const uint8_t *value, size_t length) {
    Timer timer(program, kCompute);
    Tile &tile = index % 2 == 0 ? a : b;
    tile.resize(length / sizeof(double));
    std::memcpy(tile.data(), value, length);
    if (index % 2 == 0) return;
    if (a.size() != b.size()) fail(names[index] + " has another size than " + names[index - 1]);
    c.resize(a.size());
    add_product(a, b.data(), rows_of(length), c);
  });
  Object object{tile_name("product/", row, column), {}};
  append(object.value, c.data(), c.size());
  return object;
}

// The product of a stored matrix and a vector.
std::vector<double> times(Program &program, const char *matrix, size_t tiles, const std::vector<double> &vector) {
  std::vector<double> result(vector.size());
  size_t rows = vector.size() / tiles;
  for (size_t row = 0; row < tiles; row++) {
    std::vector<std::string> names;
    for (size_t column = 0; column < tiles; column++) names.push_back(tile_name(matrix, row, column));
    program.load(names, true, [&](size_t column, const uint8_t *value, size_t length) {
      Tile tile(length / sizeof(double));
      std::memcpy(tile.data(), value, length);
      for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < rows; j++) result[row * rows + i] += tile[i * rows + j] * vector[column * rows + j];
    });
  }
  return result;
}

// Freivalds' check: A·(B·x) is C·x for a random x, which a wrong C does not fulfil.
void check_product(Program &program, size_t tiles, size_t rows) {
  std::vector<double> x(tiles * rows);
  Random random(42);
  for (double &value : x) value = random.unit();
  auto expected = times(program, "matrix/A/", tiles, times(program, "matrix/B/", tiles, x));
  auto found = times(program, "product/", tiles, x);
  for (size_t at = 0; at < x.size(); at++) {
    if (!(std::fabs(found[at] - expected[at]) < 1e-9 * static_cast<double>(x.size()))) fail("the product is wrong");
  }
}

}  // namespace

int main(int argc, char **argv) {
  Program program(argc, argv, 1, kUsage);
  program.open(0);
  size_t stored = program.list("matrix/A/").size();
  auto tiles = static_cast<size_t>(std::lround(std::sqrt(static_cast<double>(stored))));
  if (tiles == 0 || tiles * tiles != stored) fail("there are no matrices: see generate --help");
  size_t rows = 0;
  for (size_t row = 0; row < tiles; row++) {
    std::vector<Object> products(tiles);
    Region region("row of tiles", tiles);
#pragma omp parallel for schedule(dynamic)
    for (size_t column = 0; column < tiles; column++) products[column] = multiply(program, tiles, row, column);
    program.store(products);
    rows = rows_of(products[0].value.size());
  }
  check_product(program, tiles, rows);
  return program.finish("matmul", "product/");
}
