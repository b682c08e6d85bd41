/*
 * What the benchmark calls of WiredTiger, as plain functions: WiredTiger's API is structures of function pointers.
 *
 * Every function answers 0, or WiredTiger's error code; ISO_ABSENT and ISO_CONFLICT stand for the two that are no failures.
 * A session, with its cursors, belongs to one thread.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <wiredtiger.h>

enum { ISO_ABSENT = 1000001, ISO_CONFLICT = 1000002 };

struct iso_session {
	WT_SESSION *session;
	size_t tables;
	WT_CURSOR *cursors[];
};

static int
code(int ret)
{
	switch (ret) {
	case WT_NOTFOUND:
		return (ISO_ABSENT);
	case WT_ROLLBACK:
		return (ISO_CONFLICT);
	default:
		return (ret);
	}
}

int
iso_wt_open(const char *path, const char *config, WT_CONNECTION **connection)
{
	return (code(wiredtiger_open(path, NULL, config, connection)));
}

int
iso_wt_close(WT_CONNECTION *connection)
{
	return (code(connection->close(connection, NULL)));
}

const char *
iso_wt_message(int ret)
{
	return (wiredtiger_strerror(ret));
}

const char *
iso_wt_version(void)
{
	return (wiredtiger_version(NULL, NULL, NULL));
}

/* Makes a table where there is none. */
int
iso_wt_create(WT_CONNECTION *connection, const char *uri, const char *config)
{
	WT_SESSION *session;
	int ret, closed;

	if ((ret = connection->open_session(connection, NULL, NULL, &session)) != 0)
		return (code(ret));
	ret = session->create(session, uri, config);
	closed = session->close(session, NULL);
	return (code(ret != 0 ? ret : closed));
}

/* Writes everything to the files. */
int
iso_wt_checkpoint(WT_CONNECTION *connection)
{
	WT_SESSION *session;
	int ret, closed;

	if ((ret = connection->open_session(connection, NULL, NULL, &session)) != 0)
		return (code(ret));
	ret = session->checkpoint(session, NULL);
	closed = session->close(session, NULL);
	return (code(ret != 0 ? ret : closed));
}

void
iso_wt_session_close(struct iso_session *s)
{
	/* Closing a session closes its cursors. */
	(void)s->session->close(s->session, NULL);
	free(s);
}

/* A session with a cursor per table; with `bulk`, cursors for loading in order. */
int
iso_wt_session_open(WT_CONNECTION *connection, const char *config, const char *const *uris, size_t tables, int bulk,
    struct iso_session **out)
{
	struct iso_session *s;
	int ret;

	if ((s = calloc(1, sizeof(*s) + tables * sizeof(WT_CURSOR *))) == NULL)
		return (12 /* ENOMEM */);
	if ((ret = connection->open_session(connection, NULL, config, &s->session)) != 0) {
		free(s);
		return (code(ret));
	}
	for (s->tables = 0; s->tables < tables; s->tables++) {
		ret = s->session->open_cursor(
		    s->session, uris[s->tables], NULL, bulk ? "bulk" : NULL, &s->cursors[s->tables]);
		if (ret != 0) {
			iso_wt_session_close(s);
			return (code(ret));
		}
	}
	*out = s;
	return (0);
}

int
iso_wt_begin(struct iso_session *s)
{
	return (code(s->session->begin_transaction(s->session, "isolation=snapshot")));
}

int
iso_wt_commit(struct iso_session *s)
{
	return (code(s->session->commit_transaction(s->session, NULL)));
}

int
iso_wt_rollback(struct iso_session *s)
{
	return (code(s->session->rollback_transaction(s->session, NULL)));
}

static void
set_key(WT_CURSOR *cursor, const void *key, size_t key_bytes)
{
	WT_ITEM item;

	memset(&item, 0, sizeof(item));
	item.data = key;
	item.size = key_bytes;
	cursor->set_key(cursor, &item);
}

static int
get_value(WT_CURSOR *cursor, const void **value, size_t *value_bytes)
{
	WT_ITEM item;
	int ret;

	if ((ret = cursor->get_value(cursor, &item)) != 0)
		return (code(ret));
	*value = item.data;
	*value_bytes = item.size;
	return (0);
}

/* The value stays where it is until the cursor is used or reset. */
int
iso_wt_get(struct iso_session *s, size_t table, const void *key, size_t key_bytes, const void **value,
    size_t *value_bytes)
{
	WT_CURSOR *cursor = s->cursors[table];
	int ret;

	set_key(cursor, key, key_bytes);
	if ((ret = cursor->search(cursor)) != 0)
		return (code(ret));
	return (get_value(cursor, value, value_bytes));
}

/* Inserts or replaces. */
int
iso_wt_put(struct iso_session *s, size_t table, const void *key, size_t key_bytes, const void *value,
    size_t value_bytes)
{
	WT_CURSOR *cursor = s->cursors[table];
	WT_ITEM item;

	set_key(cursor, key, key_bytes);
	memset(&item, 0, sizeof(item));
	item.data = value;
	item.size = value_bytes;
	cursor->set_value(cursor, &item);
	return (code(cursor->insert(cursor)));
}

int
iso_wt_delete(struct iso_session *s, size_t table, const void *key, size_t key_bytes)
{
	WT_CURSOR *cursor = s->cursors[table];
	int ret;

	set_key(cursor, key, key_bytes);
	ret = cursor->remove(cursor);
	return (ret == WT_NOTFOUND ? 0 : code(ret));
}

/* Goes to the first record at or after the key. */
int
iso_wt_seek(struct iso_session *s, size_t table, const void *key, size_t key_bytes)
{
	WT_CURSOR *cursor = s->cursors[table];
	int exact, ret;

	set_key(cursor, key, key_bytes);
	if ((ret = cursor->search_near(cursor, &exact)) != 0)
		return (code(ret));
	return (exact < 0 ? code(cursor->next(cursor)) : 0);
}

int
iso_wt_next(struct iso_session *s, size_t table)
{
	return (code(s->cursors[table]->next(s->cursors[table])));
}

/* The record that the cursor stands at. */
int
iso_wt_current(struct iso_session *s, size_t table, const void **key, size_t *key_bytes, const void **value,
    size_t *value_bytes)
{
	WT_CURSOR *cursor = s->cursors[table];
	WT_ITEM item;
	int ret;

	if ((ret = cursor->get_key(cursor, &item)) != 0)
		return (code(ret));
	*key = item.data;
	*key_bytes = item.size;
	return (get_value(cursor, value, value_bytes));
}

/* Lets go of the page that the cursor stands on. */
int
iso_wt_reset(struct iso_session *s, size_t table)
{
	return (code(s->cursors[table]->reset(s->cursors[table])));
}
