/*
 * spelling.c: see spelling.h.
 */
#include "base/spelling.h"

#include "base/base.h"

int spelling_count(const struct spelling *s)
{
    int n = 0;
    while (n < SPELLINGS_EACH && s->others[n]) n++;
    return n + 1;
}

const char *spelling_at(const struct spelling *s, int k) { return k ? s->others[k - 1] : s->name; }

int spelling_of(const struct spelling *list, const char *name)
{
    for (int i = 0; list && list[i].name; i++)
        if (!strncmp(name, list[i].name, strlen(list[i].name))) return i;
    return -1;
}

const char *spelling_apply(const struct spelling *list, struct spelled how, const char *name, char *out, size_t room)
{
    const int i = spelling_of(list, name);
    if (i < 0 || !how.by[i]) return name;
    snprintf(out, room, "%s%s", spelling_at(&list[i], how.by[i]), name + strlen(list[i].name));
    return out;
}

struct spelled spelling_in_memory(const struct spelling *list)
{
    struct spelled how = {{0}};
    for (int i = 0; list && list[i].name; i++) how.by[i] = list[i].others[0] ? 1 : 0;
    return how;
}

bool name_is_stack(const char *name) { return strchr(name, '*') != NULL; }

const char *name_in_stack(const char *name, int64_t i, char *out, size_t room)
{
    const char *star = strchr(name, '*');
    if (!star) return name;
    snprintf(out, room, "%.*s%lld%s", (int)(star - name), name, (long long)i, star + 1);
    return out;
}

const struct fused_tensor *fused_find(const struct fused_tensor *list, const char *name)
{
    for (; list && list->name; list++)
        if (text_ends_with(name, list->name)) return list;
    return NULL;
}
