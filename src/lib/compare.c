/*
 * compare.c: tables of plans for users of the library (the contract is in plimsoll.h).
 */
#include "plimsoll.h"

#include "compare/plan_request.h"
#include "lib/session.h"

/* Reads a copy of the session's configuration, by what was given to it. */
static int read_copy(const void *session, struct config *c, struct error *e)
{
    const struct pl_session *s = session;
    struct text given = {0};
    config_write_given(&s->config, &given);
    config_init(c);
    const int rc = given.n ? config_read_text(c, given.at, "the session", e) : PL_OK;
    if (rc) config_free(c);
    text_free(&given);
    return rc;
}

/* Prepares the result of a table; NULL, with an error: there is none. */
static struct text *begin(struct pl_session *s, const char *call)
{
    if (s->build) error_set(&s->error, PL_USAGE, "%s: pl_define gave a model, which other sessions cannot build", call);
    else config_check(&s->config, CONFIG_NEEDS_MODEL, &s->error);
    text_free(&s->text);
    return s->error.code ? NULL : &s->text;
}

const char *pl_frontier_json(struct pl_session *s)
{
    ENTER_OR(s, NULL);
    struct text *out = begin(s, "pl_frontier_json");
    const struct plan_source source = {.read = read_copy, .of = s};
    return out && !plan_frontier_json(&source, out, &s->error) ? out->at : NULL;
}

const char *pl_devices_json(struct pl_session *s, const char *gpus)
{
    ENTER_OR(s, NULL);
    const struct plan_source source = {.read = read_copy, .of = s};
    if (!gpus) {
        error_set(&s->error, PL_USAGE, "pl_devices_json: the list is NULL");
        return NULL;
    }
    struct text *out = begin(s, "pl_devices_json");
    return out && !plan_devices_json(&source, gpus, out, &s->error) ? out->at : NULL;
}
