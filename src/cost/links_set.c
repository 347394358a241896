/*
 * links_set.c: the links between ranks that parallel.links names: built-in ones, the profile's own,
 * or those of a file. Apart from links.c, so that predicted times need no reader of files.
 */
#include "cost/calibration.h"
#include "cost/links.h"

#include <stdio.h>
#include <string.h>

#include "cost/profile.h"

/* Published rates in GB/s, one direction, of one GPU or one port. */
static const struct {
    const char *name;
    double rate, latency, peer;
} known[] = {
    {"nvlink4", 450, 10e-6, 1e-6},    {"nvlink3", 300, 10e-6, 1e-6},    {"pcie5", 63, 15e-6, 2e-6},
    {"pcie4", 31.5, 15e-6, 2e-6},     {"ib-ndr", 50, 15e-6, 2e-6},      {"ib-hdr", 25, 15e-6, 2e-6},
    {"eth-100g", 12.5, 40e-6, 10e-6}, {"eth-25g", 3.125, 40e-6, 10e-6}, {"eth-10g", 1.25, 50e-6, 10e-6},
    {"eth-1g", 0.125, 80e-6, 20e-6},  {"shm", 5, 10e-6, 5e-6},
};

static bool is_file(const char *name) { return strchr(name, '/') || text_ends_with(name, ".json"); }

static int unknown_link(const char *name, struct error *e)
{
    struct text names = {0};
    for (size_t i = 0; i < COUNT(known); i++) text_printf(&names, "%s, ", known[i].name);
    error_set(e, PL_USAGE,
              "parallel.links: found \"%.60s\"; known links are %smeasured (those of the profile) or the file of a "
              "profile; two are those within a host and between hosts, such as nvlink4,ib-ndr",
              name, names.at);
    text_free(&names);
    return e->code;
}

/* The link of a profile's file. */
static int read_link(struct link *to, enum link_kind which, const char *path, struct error *e)
{
    struct profile p;
    struct calibration *c = mem_alloc(sizeof *c);
    int rc = profile_read(path, &p, c, e);
    if (!rc) *to = p.link[which];
    mem_free(c);
    return rc ? error_prepend(e, "parallel.links") : PL_OK;
}

static int take(struct profile *p, enum link_kind which, const char *name, struct error *e)
{
    static const char *const what[] = {"ranks of one host", "hosts"};
    struct link *to = &p->link[which];
    const bool file = is_file(name);
    if (file && read_link(to, which, name, e)) return e->code;
    if (file || !strcmp(name, "measured"))
        return to->ranks ? PL_OK
                         : error_set(e, PL_USAGE,
                                     "parallel.links: %s has no measured link between %s; mpirun -np N plimsoll bench "
                                     "--calibrate measures it",
                                     file ? name : "the profile", what[which]);
    for (size_t i = 0; i < COUNT(known); i++)
        if (!strcmp(known[i].name, name)) {
            *to = (struct link){.latency = known[i].latency, .peer = known[i].peer, .bandwidth = 0.8e9 * known[i].rate};
            snprintf(to->name, sizeof to->name, "%s", name);
            return PL_OK;
        }
    return unknown_link(name, e);
}

int links_set(struct profile *p, const char *names, int per_host, struct error *e)
{
    char list[4200], *at = list;
    const char *standard[] = {p->kind == DEVICE_CUDA ? "pcie4" : "shm", "eth-10g"};
    snprintf(list, sizeof list, "%s", names ? names : "");
    p->per_host = per_host;
    for (int which = LINK_LOCAL; which <= LINK_REMOTE; which++) {
        const char *name = strsep(&at, ",");
        if (which == LINK_REMOTE && !name && per_host && is_file(list)) name = list; /* a file has both */
        if (name && *name) {
            if (take(p, which, name, e)) return e->code;
        } else if (!(p->link[which].bandwidth > 0) && take(p, which, standard[which], e)) {
            return e->code;
        }
    }
    return at ? error_set(e, PL_USAGE,
                          "parallel.links: found \"%.60s\"; expected one link, or two: within a host and between hosts",
                          names)
              : PL_OK;
}
