/*
 * ranks.c: see ranks.h.
 */
#include "cli/ranks.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/progress.h"
#include "dist/dist.h"

/* The same command under mpirun, without --ranks. Returns on failure. */
static int start_ranks(const struct command *c, int argc, char **argv, int64_t ranks, struct error *e)
{
    const char **words = mem_alloc(((size_t)argc + 1) * sizeof *words);
    int n = 0;
    words[n++] = c->name;
    for (int i = 0; i < argc; i++)
        if (!strcmp(argv[i], "--ranks")) i++;
        else if (strncmp(argv[i], "--ranks=", 8)) words[n++] = argv[i];
    int rc = dist_start(ranks, words, n, e);
    mem_free(words);
    return rc;
}

/* The processors of a host are divided among its ranks, unless a launcher or the user has done
 * so. */
static void divide_threads(const struct ranks *r)
{
    char text[24];
    const int each = dist_threads(r->local);
    if (!each) return;
    snprintf(text, sizeof text, "%d", each);
    setenv("OMP_NUM_THREADS", text, 1); /* where the plan takes its number of threads from */
    omp_set_num_threads(each);
}

static int check_ranks(const struct config *c, const struct ranks *r, struct error *e)
{
    const int64_t n = r ? r->n : 1;
    if (c->parallel_ranks <= 0 || c->parallel_ranks == n) return PL_OK;
    error_set(e, PL_USAGE, "parallel.ranks is %lld, and %lld %s started: use --ranks %lld, or mpirun -np %lld",
              (long long)c->parallel_ranks, (long long)n, n == 1 ? "process was" : "processes were",
              (long long)c->parallel_ranks, (long long)c->parallel_ranks);
    return config_at_key(c, KEY_parallel_ranks, e);
}

/* The configuration that rank 0 has read, as text, for the others. */
static int share_config(struct ranks *r, struct config *c, struct error *e)
{
    struct text text = {0};
    uint64_t bytes;
    if (!r->rank) config_write_given(c, &text);
    bytes = text.n;
    r->where = "the configuration";
    int rc = agree_broadcast(r, &bytes, sizeof bytes, e);
    char *at = r->rank ? mem_alloc(bytes + 1) : text.at;
    if (!rc) rc = agree_broadcast(r, at, bytes, e);
    r->where = NULL;
    if (r->rank) {
        config_init(c);
        if (!rc) rc = config_read_text(c, at, "the configuration of rank 0", e);
        c->checked = true; /* by rank 0, which knows the options */
        if (rc) config_free(c);
        mem_free(at);
    }
    text_free(&text);
    return rc;
}

int ranks_configure(const struct options *o, struct ranks *r, struct config *c, struct error *e)
{
    const bool reads = !r || !r->rank;
    int rc = reads ? options_config(o, c, e) : PL_OK;
    if (!rc && reads && (rc = check_ranks(c, r, e))) config_free(c);
    const bool read = reads && !rc;
    if ((rc = agree_on(r, rc, e)) && read) config_free(c);
    if (rc || !r) return rc;
    rc = share_config(r, c, e);
    if (!rc) r->timeout = c->parallel_timeout;
    return rc;
}

/* Rank 0 says it, and before dist_close, where ranks wait for each other: the launcher ends the
 * others when the first one exits. */
static void say_error(const struct command *c, const struct ranks *r, struct error *e)
{
    progress_clear();
    if (!r->rank && e->text[0]) fprintf(stderr, "plimsoll %s: %s\n", c->name, e->text);
    e->text[0] = '\0';
}

int ranks_run(const struct command *c, const struct options *o, int argc, char **argv, rank_command *run,
              struct error *e)
{
    int64_t n = 1;
    int rc = options_count("--ranks", o->ranks, 1, 65536, &n, e);
    if (rc) return rc;
    if (n > 1 && dist_launched() == 1) return start_ranks(c, argc, argv, n, e);
    struct ranks *ranks = dist_open(e);
    rc = e->code;
    if (ranks) divide_threads(ranks);
    if (ranks && ranks->rank) log_silence();
    if (!rc) rc = run(o, ranks, e);
    if (rc && ranks) say_error(c, ranks, e);
    dist_close(ranks);
    return rc;
}
