/*
 * json_tree.c: from the bytes of a scanned JSON text to its tree, on cJSON. The only file that
 * includes its header. The planner of the page has its own (page/json_tree.c).
 *
 * cJSON checks the structure, but it is lenient and loses digits: hence the scan (json_scan.c).
 *
 * Invariant: numbers occur in the text in the order in which a walk over cJSON's tree, parents
 * first, visits them. So the walk that copies the tree takes the next recorded number each time,
 * and with it the exact digits.
 */
#include <cjson/cJSON.h>
#include <math.h>
#include <pthread.h>

#include "io/json_scan.h"

struct walk {
    struct bump *b;
    const struct json_scan *scan;
    uint32_t next_number;
};

static int walk_value(struct walk *w, const cJSON *from, struct value **out);

static int walk_number(struct walk *w, struct value **out)
{
    CHECK(w->next_number < w->scan->numbers.n, "the text has fewer numbers than the tree");
    struct span s = w->scan->numbers.at[w->next_number++];
    *out = value_digits(w->b, s.at, s.n);
    if (isinf((*out)->number)) return json_fail_at(w->scan, s.at, "the number is beyond the range of a double");
    return PL_OK;
}

static int walk_children(struct walk *w, const cJSON *from, struct value *to)
{
    for (const cJSON *c = from->child; c; c = c->next) {
        struct value *child = NULL;
        if (to->kind == VALUE_MAP && value_get(to, c->string))
            return error_set(w->scan->e, PL_USAGE, "the key \"%.200s\" occurs twice in one map", c->string);
        if (walk_value(w, c, &child)) return w->scan->e->code;
        if (to->kind == VALUE_MAP) value_put(w->b, to, c->string, child);
        else value_append(w->b, to, child);
    }
    return PL_OK;
}

static int walk_value(struct walk *w, const cJSON *from, struct value **out)
{
    if (cJSON_IsNumber(from)) return walk_number(w, out);
    if (cJSON_IsNull(from)) *out = value_new(w->b, VALUE_NULL);
    else if (cJSON_IsBool(from)) *out = value_bool(w->b, cJSON_IsTrue(from));
    else if (cJSON_IsString(from)) *out = value_string(w->b, from->valuestring);
    else {
        *out = value_new(w->b, cJSON_IsObject(from) ? VALUE_MAP : VALUE_LIST);
        return walk_children(w, from, *out);
    }
    return PL_OK;
}

/* Makes cJSON end the process where memory is short, as all of our code does: it would report a
 * failed allocation as malformed JSON. */
static void set_hooks(void)
{
    cJSON_InitHooks(&(cJSON_Hooks){mem_alloc, mem_free});
}

int json_tree(struct json_scan *s, struct bump *b, struct value **out)
{
    static pthread_once_t hooks = PTHREAD_ONCE_INIT;
    pthread_once(&hooks, set_hooks);
    const char *end = s->begin;
    /* cJSON knows that the text is terminated, so its look-ahead stays in bounds */
    cJSON *tree = cJSON_ParseWithLengthOpts(s->begin, (size_t)(s->end - s->begin) + 1, &end, 0);
    if (!tree) {
        if (end >= s->end) return json_fail_at(s, s->end, "the text ends too early");
        return json_fail_at(s, end, "expected a JSON value, or one of , : ] } before this");
    }
    int rc = PL_OK;
    for (; end < s->end && !rc; end++)
        if (!strchr(" \t\r\n", *end)) rc = json_fail_at(s, end, "unexpected text after the JSON value");
    if (!rc) {
        struct walk w = {b, s, 0};
        rc = walk_value(&w, tree, out);
    }
    cJSON_Delete(tree);
    return rc;
}
