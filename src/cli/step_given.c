/*
 * step_given.c: which tensor of the file is an input of the model.
 */
#include "cli/step.h"

const struct st_entry *step_given(const struct step *s, const struct model *m, const char *name)
{
    const struct port *p = model_port(m, name);
    return p ? s->given[p - m->ports] : NULL;
}
