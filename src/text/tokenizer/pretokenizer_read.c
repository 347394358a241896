/*
 * pretokenizer_read.c: the "pre_tokenizer" of a tokenizer.json (see pretokenizer.h).
 */
#include <string.h>

#include "text/tokenizer/pretokenizer.h"
#include "text/unicode.h"

/* The expression of GPT-2, which ByteLevel has built in. */
#define GPT2_WORDS "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

static int read_behavior(struct split_step *s, const char *behavior, struct error *e)
{
    static const char *const behaviors[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext",
                                            "Contiguous"};
    size_t i = 0;
    while (i < COUNT(behaviors) && strcmp(behavior, behaviors[i])) i++;
    if (i == COUNT(behaviors))
        return error_set(e, PL_USAGE,
                         "pre_tokenizer.behavior is \"%.60s\"; expected Isolated, Removed, MergedWithPrevious, "
                         "MergedWithNext or Contiguous",
                         behavior);
    s->behavior = (enum split_behavior)i;
    return PL_OK;
}

static int read_split(struct split_step *s, const struct value *v, struct bump *memory, struct error *e)
{
    const char *behavior;
    s->kind = SPLIT_PATTERN;
    if (value_as_string(value_get(v, "behavior"), "pre_tokenizer.behavior", &behavior, e) ||
        value_opt_bool(v, "invert", &s->invert, e) || read_behavior(s, behavior, e))
        return e->code;
    return finder_read(&s->find, value_get(v, "pattern"), "pre_tokenizer.pattern", memory, e);
}

static int read_byte_level(struct split_step *s, const struct value *v, struct error *e)
{
    *s = (struct split_step){.kind = SPLIT_BYTE_LEVEL, .use_regex = true, .add_prefix_space = true};
    if (value_opt_bool(v, "add_prefix_space", &s->add_prefix_space, e) ||
        value_opt_bool(v, "use_regex", &s->use_regex, e))
        return e->code;
    return s->use_regex ? finder_expression(&s->find, GPT2_WORDS, "ByteLevel", e) : PL_OK;
}

static int read_digits(struct split_step *s, const struct value *v, struct error *e)
{
    bool individual = false;
    if (value_opt_bool(v, "individual_digits", &individual, e)) return e->code;
    *s = (struct split_step){.kind = SPLIT_DIGITS, .behavior = individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS};
    return PL_OK;
}

static int read_punctuation(struct split_step *s, const struct value *v, struct error *e)
{
    const char *behavior = "Isolated";
    *s = (struct split_step){.kind = SPLIT_PUNCTUATION};
    return value_opt_string(v, "behavior", &behavior, e) ? error_prepend(e, "pre_tokenizer")
                                                         : read_behavior(s, behavior, e);
}

static int read_delimiter(struct split_step *s, const struct value *v, struct bump *memory, struct error *e)
{
    const char *delimiter;
    if (value_as_string(value_get(v, "delimiter"), "pre_tokenizer.delimiter", &delimiter, e)) return e->code;
    if (!*delimiter || (size_t)utf8_length(*delimiter) != strlen(delimiter))
        return error_set(e, PL_USAGE, "pre_tokenizer.delimiter is \"%.60s\"; expected one character", delimiter);
    *s = (struct split_step){.kind = SPLIT_PATTERN, .behavior = SPLIT_REMOVED, .find = {.literal = bump_string(memory, delimiter), .n = (uint32_t)strlen(delimiter)}};
    return PL_OK;
}

int metaspace_read(struct split_step *s, const struct value *v, const char *name, struct bump *memory, struct error *e)
{
    static const char *const schemes[] = {"always", "first", "never"};
    const char *replacement = NULL, *scheme = NULL;
    bool prefix = true;
    *s = (struct split_step){.kind = SPLIT_METASPACE, .behavior = SPLIT_WITH_NEXT, .split = true};
    if (value_as_string(value_get(v, "replacement"), "replacement", &replacement, e) ||
        value_opt_string(v, "prepend_scheme", &scheme, e) || value_opt_bool(v, "add_prefix_space", &prefix, e) ||
        value_opt_bool(v, "split", &s->split, e))
        return error_prepend(e, "%s", name);
    const size_t n = strlen(replacement);
    if (!n || (size_t)utf8_length(*replacement) != n)
        return error_set(e, PL_USAGE, "%s: replacement is \"%.60s\"; expected one character", name, replacement);
    size_t i = 0;
    while (scheme && i < COUNT(schemes) && strcmp(scheme, schemes[i])) i++;
    if (i == COUNT(schemes))
        return error_set(e, PL_USAGE, "%s: prepend_scheme is \"%.60s\"; expected always, first or never", name, scheme);
    if (!prefix && scheme && i != PREPEND_NEVER)
        return error_set(e, PL_USAGE, "%s: add_prefix_space is false, but prepend_scheme is \"%s\"", name, scheme);
    s->prepend = prefix ? (int)i : PREPEND_NEVER;
    s->replacement = bump_string(memory, replacement);
    s->find = (struct finder){.literal = s->replacement, .n = (uint32_t)n};
    return PL_OK;
}

static int read_step(struct split_step *s, const char *type, const struct value *v, struct bump *memory,
                     struct error *e)
{
    if (!strcmp(type, "Split")) return read_split(s, v, memory, e);
    if (!strcmp(type, "ByteLevel")) return read_byte_level(s, v, e);
    if (!strcmp(type, "Digits")) return read_digits(s, v, e);
    if (!strcmp(type, "Metaspace")) return metaspace_read(s, v, "pre_tokenizer", memory, e);
    if (!strcmp(type, "Whitespace"))
        return *s = (struct split_step){.kind = SPLIT_WORDS, .behavior = SPLIT_REMOVED}, PL_OK;
    if (!strcmp(type, "WhitespaceSplit"))
        return *s = (struct split_step){.kind = SPLIT_SPACES, .behavior = SPLIT_REMOVED}, PL_OK;
    if (!strcmp(type, "Punctuation")) return read_punctuation(s, v, e);
    if (!strcmp(type, "CharDelimiterSplit")) return read_delimiter(s, v, memory, e);
    return error_set(e, PL_USAGE,
                     "the pre-tokenizer \"%.60s\" is not known; known are Sequence, Split, ByteLevel, Digits, "
                     "Metaspace, Whitespace, WhitespaceSplit, Punctuation, CharDelimiterSplit and BertPreTokenizer",
                     type);
}

int pretokenizer_read(struct pretokenizer *p, const struct value *v, struct bump *memory, struct error *e)
{
    const char *type;
    if (!v || v->kind == VALUE_NULL) return PL_OK;
    if (value_as_map(v, "pre_tokenizer", e) || value_as_string(value_get(v, "type"), "pre_tokenizer.type", &type, e))
        return e->code;
    if (!strcmp(type, "Sequence")) {
        const struct value *list = value_get(v, "pretokenizers");
        if (value_as_list(list, "pre_tokenizer.pretokenizers", e)) return e->code;
        for (uint32_t i = 0; i < list->count; i++)
            if (pretokenizer_read(p, list->items[i], memory, e)) return e->code;
        return PL_OK;
    }
    struct split_step step = {0};
    if (p->steps.n + 1 >= SPLIT_STEPS_MOST)
        return error_set(e, PL_USAGE, "the pre-tokenizer has more than %d steps", SPLIT_STEPS_MOST - 1);
    if (!strcmp(type, "BertPreTokenizer")) {
        vec_push(&p->steps, ((struct split_step){.kind = SPLIT_SPACES, .behavior = SPLIT_REMOVED}));
        vec_push(&p->steps, ((struct split_step){.kind = SPLIT_PUNCTUATION, .behavior = SPLIT_ISOLATED}));
        return PL_OK;
    }
    int rc = read_step(&step, type, v, memory, e);
    if (!rc) vec_push(&p->steps, step);
    else finder_close(&step.find);
    return rc;
}

bool pretokenizer_is_byte_level(const struct pretokenizer *p)
{
    return p->steps.n && p->steps.at[p->steps.n - 1].kind == SPLIT_BYTE_LEVEL;
}

void pretokenizer_free(struct pretokenizer *p)
{
    for (uint32_t i = 0; i < p->steps.n; i++) finder_close(&p->steps.at[i].find);
    vec_free(&p->steps);
}
