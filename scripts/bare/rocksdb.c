/*
 * Unique random inserts of RocksDB by its C API with nothing between: what the benchmark's adapter is compared with beside db_bench
 * (scripts/compare_db_bench.sh). db_bench is a C++ program whose copies of the library's inline functions the dynamic linker gives to the
 * library too, so that the library runs otherwise in it than in a program that calls its C API.
 *
 *   cc -O2 -o rocksdb scripts/bare/rocksdb.c -lrocksdb
 *   rocksdb DIR OPTIONS RECORDS KEY_BYTES VALUE_BYTES
 *
 * OPTIONS is RocksDB's own text of options, made of the settings that the adapter prints. Keys and values are those of the benchmark
 * (crates/isobath-lab/src/bench/keys.rs). Prints operations per second.
 */
#include <rocksdb/c.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define KEY_BYTES_MAX 48
#define NOISE_BYTES (16u << 10)

static void
check(char *error)
{
	if (error != NULL) {
		fprintf(stderr, "%s\n", error);
		exit(1);
	}
}

/* As `mix` of keys.rs. */
static uint64_t
mix(uint64_t z)
{
	z += 0x9e3779b97f4a7c15u;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return (z ^ z >> 31);
}

static double
now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return ((double)time.tv_sec + (double)time.tv_nsec * 1e-9);
}

int
main(int argc, char *argv[])
{
	char key[KEY_BYTES_MAX], *error = NULL, *noise;
	double began;
	rocksdb_options_t *base, *options;
	rocksdb_t *db;
	rocksdb_writeoptions_t *write;
	size_t byte, key_bytes, value_bytes;
	uint64_t at, number, records;

	if (argc != 6) {
		fprintf(stderr, "see the beginning of scripts/bare/rocksdb.c\n");
		return (2);
	}
	records = strtoull(argv[3], NULL, 10);
	key_bytes = strtoull(argv[4], NULL, 10);
	value_bytes = strtoull(argv[5], NULL, 10);
	if (records == 0 || key_bytes < 8 || key_bytes > KEY_BYTES_MAX)
		return (2);
	if ((noise = malloc(NOISE_BYTES + value_bytes)) == NULL)
		return (1);
	for (byte = 0; byte < NOISE_BYTES + value_bytes; byte++)
		noise[byte] = (char)mix(byte);
	base = rocksdb_options_create();
	options = rocksdb_options_create();
	rocksdb_get_options_from_string(base, argv[2], options, &error);
	check(error);
	db = rocksdb_open(options, argv[1], &error);
	check(error);
	write = rocksdb_writeoptions_create();
	memset(key, '0', sizeof(key));
	began = now();
	for (at = 0; at < records; at++) {
		number = mix(at);
		for (byte = 0; byte < 8; byte++)
			key[byte] = (char)(number >> (56 - 8 * byte));
		rocksdb_put(db, write, key, key_bytes, noise + mix(at) % NOISE_BYTES, value_bytes, &error);
		check(error);
	}
	printf("operations_per_s %.1f\n", (double)records / (now() - began));
	rocksdb_writeoptions_destroy(write);
	rocksdb_close(db);
	rocksdb_options_destroy(options);
	rocksdb_options_destroy(base);
	free(noise);
	return (0);
}
