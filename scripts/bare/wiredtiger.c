/*
 * Lookups and updates of WiredTiger with nothing between: what the benchmark's adapter is compared with (scripts/compare_bare.sh).
 *
 *   cc -O2 -o wiredtiger scripts/bare/wiredtiger.c -lwiredtiger -lpthread
 *   wiredtiger load DIR CONNECTION TABLE RECORDS KEY_BYTES VALUE_BYTES hashed|sequential
 *   wiredtiger get|put DIR CONNECTION TABLE RECORDS KEY_BYTES VALUE_BYTES hashed|sequential THREADS WARM_UP_S SECONDS
 *
 * CONNECTION and TABLE are the settings that the adapter prints. Keys, their order and the sizes of values are those of the benchmark
 * (crates/isobath-lab/src/bench/keys.rs); records are chosen uniformly. Prints operations per second, and
 * CPU time per operation.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <wiredtiger.h>

#define KEY_BYTES_MAX 48
#define NOISE_BYTES (256u << 10)
#define URI "table:bench"
#define BACK_OFF_US 50
#define MAX_BACK_OFF_US 2000

static size_t key_bytes, value_bytes;
static uint64_t records;
static int hashed, puts_values;
static unsigned char *noise;
static WT_CONNECTION *connection;
static atomic_int stopping;

struct client {
	_Alignas(128) atomic_ullong operations;
	uint64_t random;
	pthread_t thread;
};

static void
check(int ret, const char *what)
{
	if (ret != 0) {
		fprintf(stderr, "%s: %s\n", what, wiredtiger_strerror(ret));
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

static uint64_t
next_random(uint64_t *state)
{
	*state += 0x9e3779b97f4a7c15u;
	return (mix(*state));
}

/* Eight bytes, most significant first, padded with '0'. */
static void
set_key(WT_CURSOR *cursor, unsigned char *key, uint64_t number)
{
	WT_ITEM item;
	int at;

	for (at = 0; at < 8; at++)
		key[at] = (unsigned char)(number >> (56 - 8 * at));
	memset(key + 8, '0', key_bytes - 8);
	memset(&item, 0, sizeof(item));
	item.data = key;
	item.size = key_bytes;
	cursor->set_key(cursor, &item);
}

static void
set_value(WT_CURSOR *cursor, uint64_t random)
{
	WT_ITEM item;

	memset(&item, 0, sizeof(item));
	item.data = noise + random % NOISE_BYTES;
	item.size = value_bytes;
	cursor->set_value(cursor, &item);
}

static int
ascending(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return ((x > y) - (x < y));
}

static void
load(const char *table)
{
	WT_SESSION *session;
	WT_CURSOR *cursor;
	unsigned char key[KEY_BYTES_MAX];
	uint64_t *numbers, at;

	if ((numbers = malloc(records * sizeof(*numbers))) == NULL)
		exit(1);
	for (at = 0; at < records; at++)
		numbers[at] = hashed ? mix(at) : at;
	qsort(numbers, records, sizeof(*numbers), ascending);
	check(connection->open_session(connection, NULL, NULL, &session), "open_session");
	check(session->create(session, URI, table), "create");
	check(session->open_cursor(session, URI, NULL, "bulk", &cursor), "open_cursor");
	for (at = 0; at < records; at++) {
		set_key(cursor, key, numbers[at]);
		set_value(cursor, numbers[at]);
		check(cursor->insert(cursor), "insert");
	}
	check(cursor->close(cursor), "close");
	check(session->checkpoint(session, NULL), "checkpoint");
	check(session->close(session, NULL), "close");
	free(numbers);
}

static void *
run(void *arg)
{
	struct client *client = arg;
	WT_SESSION *session;
	WT_CURSOR *cursor;
	WT_ITEM item;
	unsigned char key[KEY_BYTES_MAX], *value;
	uint64_t random, number;
	useconds_t pause;
	int ret;

	if ((value = malloc(value_bytes)) == NULL)
		exit(1);
	prctl(PR_SET_TIMERSLACK, 1);
	check(connection->open_session(connection, NULL, "isolation=snapshot", &session), "open_session");
	check(session->open_cursor(session, URI, NULL, NULL, &cursor), "open_cursor");
	while (!atomic_load_explicit(&stopping, memory_order_relaxed)) {
		random = next_random(&client->random);
		number = (uint64_t)(((unsigned __int128)random * records) >> 64);
		set_key(cursor, key, hashed ? mix(number) : number);
		if (puts_values) {
			set_value(cursor, random);
			/* Another client may be at the same record; the adapter waits as long. */
			for (pause = BACK_OFF_US; (ret = cursor->insert(cursor)) == WT_ROLLBACK;
			    pause = 2 * pause < MAX_BACK_OFF_US ? 2 * pause : MAX_BACK_OFF_US) {
				usleep(pause);
				set_key(cursor, key, hashed ? mix(number) : number);
				set_value(cursor, random);
			}
			check(ret, "insert");
		} else {
			check(cursor->search(cursor), "search");
			check(cursor->get_value(cursor, &item), "get_value");
			if (item.size != value_bytes)
				check(WT_NOTFOUND, "a value's length");
			/* It is gone after the reset. */
			memcpy(value, item.data, value_bytes);
			check(cursor->reset(cursor), "reset");
		}
		atomic_fetch_add_explicit(&client->operations, 1, memory_order_relaxed);
	}
	check(session->close(session, NULL), "close");
	free(value);
	return (NULL);
}

static double
now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return ((double)time.tv_sec + (double)time.tv_nsec * 1e-9);
}

/* CPU seconds of this process so far. */
static double
cpu_s(void)
{
	struct rusage used;

	getrusage(RUSAGE_SELF, &used);
	return ((double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
	    (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6);
}

static unsigned long long
sum(struct client *clients, int threads)
{
	unsigned long long all = 0;
	int at;

	for (at = 0; at < threads; at++)
		all += atomic_load(&clients[at].operations);
	return (all);
}

static void
measure(int threads, double warm_up_s, double seconds)
{
	struct client *clients;
	unsigned long long before, after;
	double began, cpu_before, cpu;
	int at;

	if ((clients = aligned_alloc(128, sizeof(*clients) * (size_t)threads)) == NULL)
		exit(1);
	memset(clients, 0, sizeof(*clients) * (size_t)threads);
	for (at = 0; at < threads; at++) {
		clients[at].random = (uint64_t)at * 1000003;
		check(pthread_create(&clients[at].thread, NULL, run, &clients[at]), "pthread_create");
	}
	usleep((useconds_t)(warm_up_s * 1e6));
	began = now();
	cpu_before = cpu_s();
	before = sum(clients, threads);
	usleep((useconds_t)(seconds * 1e6));
	after = sum(clients, threads);
	cpu = cpu_s() - cpu_before;
	printf("operations_per_s %.1f\n", (double)(after - before) / (now() - began));
	printf("cpu_us_per_operation %.3f\n", cpu * 1e6 / (double)(after - before));
	atomic_store(&stopping, 1);
	for (at = 0; at < threads; at++)
		check(pthread_join(clients[at].thread, NULL), "pthread_join");
	free(clients);
}

int
main(int argc, char *argv[])
{
	char *config;
	size_t at;
	int loads, ret;

	loads = argc == 9 && strcmp(argv[1], "load") == 0;
	if (!loads && argc != 12) {
		fprintf(stderr, "see the beginning of scripts/bare/wiredtiger.c\n");
		return (2);
	}
	puts_values = strcmp(argv[1], "put") == 0;
	records = strtoull(argv[5], NULL, 10);
	key_bytes = strtoull(argv[6], NULL, 10);
	value_bytes = strtoull(argv[7], NULL, 10);
	hashed = strcmp(argv[8], "hashed") == 0;
	if (records == 0 || key_bytes < 8 || key_bytes > KEY_BYTES_MAX)
		return (2);
	if ((noise = malloc(NOISE_BYTES + value_bytes)) == NULL)
		return (1);
	for (at = 0; at < NOISE_BYTES + value_bytes; at++)
		noise[at] = (unsigned char)mix(at);
	/* The last of equal settings counts. */
	if ((config = malloc(strlen(argv[3]) + 64)) == NULL)
		return (1);
	sprintf(config, "%s,create=%s,exclusive=%s", argv[3], loads ? "true" : "false", loads ? "true" : "false");
	if (loads && mkdir(argv[2], 0777) != 0) {
		perror(argv[2]);
		return (1);
	}
	ret = wiredtiger_open(argv[2], NULL, config, &connection);
	check(ret, "wiredtiger_open");
	if (loads)
		load(argv[4]);
	else
		measure(atoi(argv[9]), atof(argv[10]), atof(argv[11]));
	check(connection->close(connection, NULL), "close");
	free(config);
	free(noise);
	return (0);
}
