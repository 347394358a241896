/*
 * profile_stored.c: measured GPU profiles that are part of the program, so that a plan for such a
 * GPU is the same wherever it is made. Each is a file as `plimsoll bench --calibrate` writes it,
 * src/cost/profiles/NAME.json, which the Makefile turns into a C string.
 */
#include "cost/profile.h"

#include <string.h>


static const struct stored {
    const char *name, *text;
} stored[] = {
    {"h200",
#include "profiles/h200.inc"
    },
};

static const struct stored *find(const char *name)
{
    for (size_t i = 0; i < COUNT(stored); i++)
        if (!strcmp(stored[i].name, name)) return &stored[i];
    return NULL;
}

bool profile_is_stored(const char *name) { return find(name); }

int profile_stored(struct profile *p, struct calibration *c, const char *name, struct error *e)
{
    const struct stored *s = find(name);
    CHECK(s, "no built-in profile of %s", name);
    int rc = profile_parse(s->text, strlen(s->text), p, c, e);
    return rc ? error_prepend(e, "the built-in profile of %s", name) : PL_OK;
}
