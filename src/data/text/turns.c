/*
 * turns.c: see turns.h.
 */
#include "data/text/turns.h"

static bool is_by_column(const struct value *v)
{
    if (!v || v->kind != VALUE_MAP || !v->count) return false;
    for (uint32_t i = 0; i < v->count; i++)
        if (v->items[i]->kind != VALUE_LIST || v->items[i]->count != v->items[0]->count) return false;
    return true;
}

const struct value *turns_by_row(struct bump *b, const struct value *v)
{
    if (!is_by_column(v)) return v;
    struct value *rows = value_new(b, VALUE_LIST);
    for (uint32_t k = 0; k < v->items[0]->count; k++) {
        struct value *row = value_new(b, VALUE_MAP);
        for (uint32_t i = 0; i < v->count; i++)
            value_put(b, row, v->items[i]->key, value_copy(b, v->items[i]->items[k]));
        value_append(b, rows, row);
    }
    return rows;
}
