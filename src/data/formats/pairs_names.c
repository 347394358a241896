/*
 * pairs_names.c: the names and paths of a dataset of pairs, one after the other in one text.
 */
#include <string.h>

#include "data/formats/pairs.h"

uint32_t pairs_keep(struct pairs *p, const char *folder, const char *name)
{
    uint32_t at = (uint32_t)p->names.n;
    bool joined = folder && name[0] != '/';
    if (joined) text_printf(&p->names, "%s/", folder);
    text_append(&p->names, name, strlen(name) + 1);
    return at;
}
