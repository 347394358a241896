/*
 * decoder_read.c: the "decoder" of a tokenizer.json (see decoder.h).
 */
#include <string.h>

#include "text/tokenizer/decoder.h"
#include "text/tokenizer/pretokenizer.h"
#include "text/unicode.h"

static int read_strip(struct decode_step *s, const struct value *v, struct bump *memory, struct error *e)
{
    const char *content;
    uint64_t start, stop;
    if (value_as_string(value_get(v, "content"), "decoder.content", &content, e) ||
        value_as_uint(value_get(v, "start"), "decoder.start", &start, e) ||
        value_as_uint(value_get(v, "stop"), "decoder.stop", &stop, e))
        return e->code;
    if (!*content || (size_t)utf8_length(*content) != strlen(content))
        return error_set(e, PL_USAGE, "decoder.content is \"%.60s\"; expected one character", content);
    if (start > 1000 || stop > 1000) return error_set(e, PL_USAGE, "decoder.start and decoder.stop are at most 1000");
    *s = (struct decode_step){.kind = DECODE_STRIP, .content = bump_string(memory, content), .start = (uint32_t)start, .stop = (uint32_t)stop};
    return PL_OK;
}

static int read_replace(struct decode_step *s, const struct value *v, struct bump *memory, struct error *e)
{
    const char *content;
    s->kind = DECODE_REPLACE;
    if (value_as_string(value_get(v, "content"), "decoder.content", &content, e)) return e->code;
    s->content = bump_string(memory, content);
    return finder_read(&s->find, value_get(v, "pattern"), "decoder.pattern", memory, e);
}

static int read_metaspace(struct decode_step *s, const struct value *v, struct bump *memory, struct error *e)
{
    struct split_step m;
    if (metaspace_read(&m, v, "decoder", memory, e)) return e->code;
    *s = (struct decode_step){.kind = DECODE_METASPACE, .content = m.replacement, .strip_first = m.prepend != PREPEND_NEVER};
    return PL_OK;
}

static int read_words(struct decode_step *s, bool wordpiece, const struct value *v, struct bump *memory,
                      struct error *e)
{
    const char *text = wordpiece ? "##" : "</w>";
    *s = (struct decode_step){.kind = wordpiece ? DECODE_WORDPIECE : DECODE_SUFFIX, .cleanup = true};
    if (value_opt_string(v, wordpiece ? "prefix" : "suffix", &text, e) || value_opt_bool(v, "cleanup", &s->cleanup, e))
        return error_prepend(e, "decoder");
    if (!*text) return error_set(e, PL_USAGE, "decoder.%s is empty", wordpiece ? "prefix" : "suffix");
    s->content = bump_string(memory, text);
    return PL_OK;
}

static int read_step(struct decode_step *s, const char *type, const struct value *v, struct bump *memory,
                     struct error *e)
{
    if (!strcmp(type, "ByteLevel")) return s->kind = DECODE_BYTE_LEVEL, PL_OK;
    if (!strcmp(type, "ByteFallback")) return s->kind = DECODE_BYTE_FALLBACK, PL_OK;
    if (!strcmp(type, "Fuse")) return s->kind = DECODE_FUSE, PL_OK;
    if (!strcmp(type, "Replace")) return read_replace(s, v, memory, e);
    if (!strcmp(type, "Strip")) return read_strip(s, v, memory, e);
    if (!strcmp(type, "Metaspace")) return read_metaspace(s, v, memory, e);
    if (!strcmp(type, "WordPiece") || !strcmp(type, "BPEDecoder")) return read_words(s, *type == 'W', v, memory, e);
    return error_set(e, PL_USAGE,
                     "the decoder \"%.60s\" is not known; known are Sequence, ByteLevel, ByteFallback, Fuse, Replace, "
                     "Strip, Metaspace, WordPiece and BPEDecoder",
                     type);
}

static int read_steps(struct decoder *d, const struct value *v, struct bump *memory, struct error *e)
{
    const char *type;
    if (value_as_map(v, "decoder", e) || value_as_string(value_get(v, "type"), "decoder.type", &type, e))
        return e->code;
    if (!strcmp(type, "Sequence")) {
        const struct value *list = value_get(v, "decoders");
        if (value_as_list(list, "decoder.decoders", e)) return e->code;
        for (uint32_t i = 0; i < list->count; i++)
            if (read_steps(d, list->items[i], memory, e)) return e->code;
        return PL_OK;
    }
    struct decode_step step = {0};
    if (d->steps.n == DECODE_STEPS_MOST)
        return error_set(e, PL_USAGE, "the decoder has more than %d steps", DECODE_STEPS_MOST);
    if (read_step(&step, type, v, memory, e)) {
        finder_close(&step.find);
        return e->code;
    }
    const struct decode_step *last = d->steps.n ? &d->steps.at[d->steps.n - 1] : NULL;
    step.fused = last && (last->fused || last->kind == DECODE_FUSE || last->kind == DECODE_BYTE_LEVEL);
    vec_push(&d->steps, step);
    if (step.fused && (step.kind == DECODE_BYTE_LEVEL || step.kind == DECODE_BYTE_FALLBACK ||
                       step.kind == DECODE_METASPACE || step.kind == DECODE_WORDPIECE || step.kind == DECODE_SUFFIX))
        return error_set(e, PL_USAGE, "the decoder \"%s\" needs the tokens, but stands behind one that joins them",
                         type);
    return PL_OK;
}

int decoder_read(struct decoder *d, const struct value *v, struct bump *memory, struct error *e)
{
    if (v && v->kind != VALUE_NULL) return read_steps(d, v, memory, e);
    vec_push(&d->steps, ((struct decode_step){.kind = DECODE_SPACES}));
    return PL_OK;
}

void decoder_free(struct decoder *d)
{
    for (uint32_t i = 0; i < d->steps.n; i++) finder_close(&d->steps.at[i].find);
    vec_free(&d->steps);
}
