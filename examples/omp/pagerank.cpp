// PageRank on a graph whose parts are objects: those of the edges that lead into a range of nodes.
//
//     pagerank WHERE [--graph FILE --parts N --iterations N --tolerance T --damping D --chunk N --expect HASH]
#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "program.h"

namespace {

constexpr const char *kUsage =
    "pagerank WHERE [--graph FILE] [--parts N] [--iterations N] [--tolerance T] [--damping D] [--chunk N] [--expect HASH]\n"
    "  --graph FILE        first stores the parts of this edge list (as SNAP has them: two numbers in a line, # comments)\n"
    "  --parts N           parts that it is stored in [64]\n"
    "  --iterations N      most iterations [50]\n"
    "  --tolerance T       ends where the ranks change by less than this in all [1e-8]\n"
    "  --damping D         share of the rank that follows edges [0.85]\n"
    "  --chunk N           parts that a thread loads together [8]\n";

using Node = uint32_t;
using Edge = std::pair<Node, Node>;  // to, from

// The edges of a file, sorted, each once, with nodes numbered without gaps in the order of their names.
std::vector<Edge> read_edges(const std::string &path, size_t &nodes) {
  std::FILE *file = std::fopen(path.c_str(), "r");
  if (!file) fail(path + " cannot be read");
  std::vector<std::pair<uint64_t, uint64_t>> named;
  std::vector<uint64_t> names;
  char line[256];
  while (std::fgets(line, sizeof line, file)) {
    uint64_t from, to;
    if (line[0] == '#') continue;
    if (std::sscanf(line, "%" SCNu64 " %" SCNu64, &from, &to) != 2) fail(path + ": no edge: " + line);
    named.emplace_back(to, from);
    names.push_back(from);
    names.push_back(to);
  }
  std::fclose(file);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  auto number = [&](uint64_t name) {
    return static_cast<Node>(std::lower_bound(names.begin(), names.end(), name) - names.begin());
  };
  std::vector<Edge> edges;
  for (const auto &edge : named) edges.emplace_back(number(edge.first), number(edge.second));
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  nodes = names.size();
  return edges;
}

// A part's object: its first node, its nodes, how many edges lead into each of them, and where those come from.
Object part_of(const std::vector<Edge> &edges, size_t part, Node first, Node nodes) {
  auto begin = std::lower_bound(edges.begin(), edges.end(), Edge{first, 0});
  auto end = std::lower_bound(edges.begin(), edges.end(), Edge{first + nodes, 0});
  std::vector<Node> numbers(2 + nodes);
  numbers[0] = first, numbers[1] = nodes;
  for (auto edge = begin; edge != end; ++edge) {
    numbers[2 + (edge->first - first)]++;
    numbers.push_back(edge->second);
  }
  Object object{numbered("graph/part/", part, 6), {}};
  append(object.value, numbers.data(), numbers.size());
  return object;
}

void store_graph(Program &program, const std::string &path, size_t parts) {
  size_t nodes = 0;
  std::vector<Object> objects;
  {
    Timer timer(program, kPrepare);
    std::vector<Edge> edges = read_edges(path, nodes);
    if (nodes == 0) fail(path + " has no edges");
    parts = std::min(parts, nodes);
    std::vector<Node> out(nodes);
    for (const Edge &edge : edges) out[edge.second]++;
    Object degrees{"graph/degrees", {}};
    append(degrees.value, out.data(), out.size());
    objects.push_back(std::move(degrees));
    for (size_t part = 0; part < parts; part++) {
      auto first = static_cast<Node>(part * nodes / parts), end = static_cast<Node>((part + 1) * nodes / parts);
      objects.push_back(part_of(edges, part, first, end - first));
    }
  }
  for (const auto &some : parts_of(objects, 64)) program.store(some);
}

// The new ranks of a part's nodes; what they have changed by, in all.
double gather(const uint8_t *value, size_t length, const std::vector<double> &given, double base, double damping,
              std::vector<double> &ranks) {
  std::vector<Node> numbers(length / sizeof(Node));
  std::memcpy(numbers.data(), value, length);
  size_t from = size_t{2} + numbers[1];
  double change = 0;
  for (Node at = 0; at < numbers[1]; at++) {
    double sum = 0;
    for (Node edge = 0; edge < numbers[2 + at]; edge++) sum += given[numbers[from++]];
    double rank = base + damping * sum;
    change += std::fabs(rank - ranks[numbers[0] + at]);
    ranks[numbers[0] + at] = rank;
  }
  return change;
}

// One iteration; what the ranks have changed by.
double iterate(Program &program, const std::vector<std::string> &names, size_t chunk, double damping,
               const std::vector<Node> &out, std::vector<double> &ranks) {
  // What each node gives to each of those that it leads to; nodes that lead nowhere give to all.
  std::vector<double> given(ranks.size());
  double nowhere = 0;
  {
    Timer timer(program, kCompute);
    for (size_t node = 0; node < ranks.size(); node++) {
      if (out[node] == 0) nowhere += ranks[node];
      else given[node] = ranks[node] / out[node];
    }
  }
  auto nodes = static_cast<double>(ranks.size());
  double base = (1 - damping) / nodes + damping * nowhere / nodes;
  auto chunks = parts_of(names, chunk);
  std::vector<double> changes(chunks.size());
  {
    Region region("gather", names.size());
#pragma omp parallel for schedule(dynamic)
    for (size_t at = 0; at < chunks.size(); at++) {
      // In order: sums of numbers depend on it.
      program.load(chunks[at], true, [&, at](size_t, const uint8_t *value, size_t length) {
        Timer timer(program, kCompute);
        changes[at] += gather(value, length, given, base, damping, ranks);
      });
    }
  }
  double change = 0;
  for (double part : changes) change += part;
  return change;
}

}  // namespace

int main(int argc, char **argv) {
  Program program(argc, argv, 1, kUsage);
  program.open(0);
  std::string graph = program.text("graph", "");
  auto stored_parts = std::max<size_t>(1, static_cast<size_t>(program.number("parts", 64)));
  if (!graph.empty()) store_graph(program, graph, stored_parts);
  auto iterations = static_cast<size_t>(program.number("iterations", 50));
  double tolerance = program.number("tolerance", 1e-8), damping = program.number("damping", 0.85);
  auto chunk = std::max<size_t>(1, static_cast<size_t>(program.number("chunk", 8)));

  std::vector<Node> out;
  program.load({"graph/degrees"}, true, [&](size_t, const uint8_t *value, size_t length) {
    out.resize(length / sizeof(Node));
    std::memcpy(out.data(), value, length);
  });
  std::vector<std::string> names = program.list("graph/part/");
  std::vector<double> ranks(out.size(), 1 / static_cast<double>(out.size()));
  for (size_t iteration = 0; iteration < iterations; iteration++) {
    if (iterate(program, names, chunk, damping, out, ranks) < tolerance) break;
  }
  double sum = 0;
  for (double rank : ranks) sum += rank;
  if (std::fabs(sum - 1) > 1e-9) fail("the ranks' sum is " + std::to_string(sum));

  std::vector<Object> results;
  for (size_t part = 0; part < names.size(); part++) {
    size_t first = part * ranks.size() / names.size(), end = (part + 1) * ranks.size() / names.size();
    Object object{numbered("rank/", part, 6), {}};
    append(object.value, &ranks[first], end - first);
    results.push_back(std::move(object));
  }
  program.store(results);
  return program.finish("pagerank", "rank/");
}
