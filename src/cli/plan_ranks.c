/*
 * plan_ranks.c: `plan --ranks 1,2,4,8`: a table over numbers of ranks, which need not be there.
 * Each row is the plan of one rank, with exact bytes and predicted times.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/progress.h"
#include "cli/plan_tables.h"
#include "cost/links.h"
#include "feed/feed.h"
#include "io/json.h"
#include "plan/communication.h"

enum { ROWS_MOST = 32 };

struct rank_row {
    int ranks, per_host;
    bool fits;
    uint64_t arena, host;        /* bytes; of the smallest plan if none fits */
    double seconds, rate;        /* of a step; samples a second */
    double efficiency;           /* rate over that of one rank times the number of ranks; 0: not known */
    struct communication sends;
    struct settings settings;
    int effective, shares;
    char links[64];
    char warning[WARNINGS_MOST][WARNING_ROOM]; /* in what the plan exceeds its machine */
    int n_warnings;
};

static void fill_row(struct rank_row *row, const struct planned *r, bool fits)
{
    struct text links = {0};
    row->fits = fits;
    row->arena = fits ? plan_arena(&r->plan) : r->plan.smallest;
    row->host = r->plan.placement.arena[SPACE_HOST];
    row->seconds = r->plan.seconds;
    row->rate = r->effective_batch / r->plan.seconds;
    row->settings = r->plan.settings;
    row->effective = r->effective_batch;
    row->shares = r->shares;
    row->per_host = r->profile.per_host ? r->profile.per_host : row->ranks;
    row->sends = plan_communication(&r->plan, &r->graph, &r->profile);
    links_print(&r->profile, &links);
    snprintf(row->links, sizeof row->links, "%s", links.n ? links.at : "");
    text_free(&links);
    memcpy(row->warning, r->warning, sizeof row->warning);
    row->n_warnings = fits ? r->n_warnings : 0;
}

/* The plan for a number of ranks; more than `per_host` of them fill whole hosts. */
static int plan_row(const struct options *o, int64_t ranks, bool budget, struct rank_row *row, struct error *e)
{
    struct options own = *o;
    struct config c;
    struct planned r = {0};
    char key[64];
    own.ranks = NULL;
    int rc = table_options(&own, &c, e);
    if (rc) return rc;
    snprintf(key, sizeof key, "parallel.ranks=%lld", (long long)ranks);
    row->ranks = (int)ranks;
    rc = config_set(&c, key, e);
    if (c.parallel_per_host > ranks) c.parallel_per_host = ranks;
    if (!budget) c.memory_budget = (struct config_budget){BUDGET_NONE, 0};
    if (!rc) rc = config_check(&c, CONFIG_NEEDS_MODEL, e);
    if (!rc) {
        rc = planned_open(&r, &c, &(struct run_options){.train = true, .describe = feed_describe, .probe = true}, e);
        if (!rc || (rc == PL_NOFIT && r.has_graph)) fill_row(row, &r, !rc);
        if (rc == PL_NOFIT) rc = PL_OK;
        planned_close(&r);
    }
    config_free(&c);
    return rc;
}

static int read_list(const char *text, int64_t *list, int *n, struct error *e)
{
    char copy[256], *at = copy, *word;
    int rc = PL_OK;
    snprintf(copy, sizeof copy, "%s", text);
    while (!rc && (word = strsep(&at, ","))) {
        if (*n == ROWS_MOST) return error_set(e, PL_USAGE, "--ranks: at most %d numbers", ROWS_MOST);
        list[*n] = 0;
        rc = options_count("--ranks", word, 1, 65536, &list[(*n)++], e);
    }
    return rc;
}

/* --- printing --------------------------------------------------------------------------------- */

static void print_row(const struct rank_row *x, struct text *out)
{
    char arena[32], sent[32], time[32], hidden[32], step[32], shard[SETTING_ROOM], group[SETTING_ROOM],
        recompute[SETTING_ROOM], offload[SETTING_ROOM], efficiency[16] = "-";
    const struct settings *s = &x->settings;
    if (!x->fits) {
        text_printf(out, "%5d  does not fit: the smallest plan needs %s\n", x->ranks, size_print(x->arena, arena));
        return;
    }
    if (x->efficiency > 0) snprintf(efficiency, sizeof efficiency, "%.0f %%", 100 * x->efficiency);
    text_printf(out, "%5d  %-9s %-5s %5d x %-3d  %-14s %-12s %11s %11s %9s %9s %9s %9.4g %6s\n", x->ranks,
                technique_print(TECHNIQUE_shard, s, shard), s->shard ? technique_print(TECHNIQUE_group, s, group) : "-",
                s->micro_batch, s->accumulation, technique_print(TECHNIQUE_recompute, s, recompute),
                technique_print(TECHNIQUE_offload, s, offload), size_print(x->arena, arena),
                size_print((uint64_t)x->sends.sent, sent), duration_print(x->sends.seconds, time),
                duration_print(x->sends.hidden, hidden), duration_print(x->seconds, step), x->rate, efficiency);
}

static void show_text(const struct rank_row *rows, int n, bool without)
{
    struct text out = {0};
    text_printf(&out, "%5s  %-9s %-5s %-11s  %-14s %-12s %11s %11s %9s %9s %9s %9s %6s\n", "ranks", "shard", "group",
                "micro-batch", "recompute", "offload", "arena", "sent", "in", "hidden", "step", "samples/s", "effic.");
    for (int i = 0; i < n; i++) print_row(&rows[i], &out);
    text_printf(&out,
                "Arena: of each rank. Sent: by each rank in a step, and received; in: its time; hidden: while the rank "
                "computes.\n"
                "Efficiency: samples/s over those of one rank%s times the number of ranks.\n",
                without ? ", which has no budget here," : "");
    for (int i = n - 1; i >= 0; i--)
        if (rows[i].ranks > 1) {
            text_printf(&out, "Links: %s%s.\n", rows[i].links, rows[i].per_host < rows[i].ranks ? "" : " (one host)");
            break;
        }
    for (int i = 0; i < n; i++)
        for (int k = 0; k < rows[i].n_warnings; k++)
            text_printf(&out, "WARNING: %d %s: %s\n", rows[i].ranks, rows[i].ranks == 1 ? "rank" : "ranks",
                        rows[i].warning[k]);
    fputs(out.at, stdout);
    text_free(&out);
}

static void put_row(struct json_writer *w, const struct rank_row *x)
{
    json_begin_map(w, NULL);
    json_put_int(w, "world", x->ranks);
    json_put_int(w, "per_host", x->per_host);
    json_put_bool(w, "fits", x->fits);
    json_put_uint(w, x->fits ? "arena_bytes" : "smallest_budget_bytes", x->arena);
    json_put_uint(w, "host_bytes", x->host);
    if (x->fits) {
        json_put_number(w, "predicted_step_seconds", x->seconds);
        json_put_number(w, "samples_per_second", x->rate);
        json_put_uint(w, "sent_bytes", (uint64_t)x->sends.sent);
        json_put_uint(w, "received_bytes", (uint64_t)x->sends.sent);
        json_put_number(w, "communication_seconds", x->sends.seconds);
        json_put_number(w, "hidden_seconds", x->sends.hidden);
        if (x->efficiency > 0) json_put_number(w, "efficiency", x->efficiency);
        plan_put_settings(w, &x->settings, x->effective);
    }
    if (x->fits) plan_put_machine(w, x->warning, x->n_warnings);
    json_end(w);
}

static void show_json(const struct rank_row *rows, int n)
{
    struct text out = {0};
    struct json_writer w = {.out = &out, .indent = 2};
    json_begin_map(&w, NULL);
    json_begin_list(&w, "ranks");
    for (int i = 0; i < n; i++) put_row(&w, &rows[i]);
    json_end(&w);
    json_end(&w);
    printf("%s\n", out.at);
    text_free(&out);
}

int table_ranks(const struct options *o, struct error *e)
{
    struct rank_row *rows = mem_alloc(ROWS_MOST * sizeof *rows), within = {0}, one;
    int64_t list[ROWS_MOST];
    int n = 0, rc = read_list(o->ranks, list, &n, e);
    bool without = false;
    struct progress progress;
    progress_begin(&progress, "planning", "numbers of ranks", (uint64_t)n + 1);
    if (!rc) rc = plan_row(o, 1, true, &within, e);
    one = within;
    if (!rc && !one.fits) {
        without = true;
        rc = plan_row(o, 1, false, &one, e);
    }
    for (int i = 0; i < n && !rc; i++, progress_add(&progress, 1)) {
        if (list[i] == 1) rows[i] = within;
        else rc = plan_row(o, list[i], true, &rows[i], e);
        if (!rc && rows[i].fits && one.fits) rows[i].efficiency = rows[i].rate / (one.rate * rows[i].ranks);
    }
    progress_clear();
    if (!rc && o->json) show_json(rows, n);
    else if (!rc) show_text(rows, n, without);
    mem_free(rows);
    return rc;
}
