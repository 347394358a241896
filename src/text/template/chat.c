/*
 * chat.c: see chat.h.
 */
#include "text/template/chat.h"

void chat_tokens_free(struct chat_tokens *c)
{
    token_list_free(&c->tokens);
    vec_free(&c->answers);
    vec_free(&c->images);
}

/* --- rendering ------------------------------------------------------------------------------- */

/* What templates know as strftime_now in training: one day, so that token stores made on different
 * days are the same. It is the date that Llama 3's templates write where they are told none. */
static const char training_date[] = "2024-07-26";

/* Fills both names under which templates read a message's thoughts, which have one of three names,
 * as transformers does. */
static void name_thoughts(struct value *messages, struct bump *b)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    for (uint32_t i = 0; i < messages->count; i++) {
        struct value *m = messages->items[i];
        const struct value *thoughts = NULL;
        for (size_t k = 0; k < COUNT(names) && !thoughts && m->kind == VALUE_MAP; k++) {
            thoughts = value_get(m, names[k]);
            if (thoughts && thoughts->kind == VALUE_NULL) thoughts = NULL;
        }
        if (!thoughts) continue;
        if (!value_get(m, "thinking")) value_put(b, m, "thinking", value_copy(b, thoughts));
        value_put(b, m, "reasoning_content", value_copy(b, thoughts));
    }
}

/* Puts the variables that a conversation brings along; those that name tokens are the
 * tokenizer's. */
static void put_options(struct value *map, const struct value *options, struct bump *b)
{
    for (uint32_t i = 0; options && i < options->count; i++)
        if (!text_ends_with(options->items[i]->key, "_token"))
            value_put(b, map, options->items[i]->key, value_copy(b, options->items[i]));
}

/* Makes the variables of transformers' apply_chat_template. `date` NULL: today. */
static struct value *make_variables(const struct tokenizer *t, const struct template *template,
                                    const struct value *messages, const struct value *beside, bool generation_prompt,
                                    const char *date, struct bump *b)
{
    static const char *const roles[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    const struct value *tools = value_get(beside, "tools");
    struct value *map = value_new(b, VALUE_MAP);
    value_put(b, map, "documents", value_new(b, VALUE_NULL));
    put_options(map, template_kwargs(template), b);
    put_options(map, value_get(beside, "chat_template_kwargs"), b);
    for (size_t i = 0; i < COUNT(roles); i++)
        if (tokenizer_special(t, roles[i]))
            value_put(b, map, roles[i], value_string(b, tokenizer_special(t, roles[i])));
    struct value *copy = value_copy(b, messages);
    name_thoughts(copy, b);
    value_put(b, map, "messages", copy);
    value_put(b, map, "tools", tools ? value_copy(b, tools) : value_new(b, VALUE_NULL));
    value_put(b, map, "add_generation_prompt", value_bool(b, generation_prompt));
    if (date) value_put(b, map, "strftime_now", value_string(b, date));
    return map;
}

static int render(const struct tokenizer *t, const struct template *template, const struct value *messages,
                  const struct value *beside, bool generation_prompt, const char *date, struct rendered *out,
                  struct error *e)
{
    const struct value *options = value_get(beside, "chat_template_kwargs");
    struct bump b = {0};
    if (options && options->kind != VALUE_NULL && value_as_map(options, "chat_template_kwargs", e)) return e->code;
    const struct value *variables = make_variables(t, template, messages, beside, generation_prompt, date, &b);
    int rc = template_render(template, variables, out, e);
    bump_free(&b);
    return rc;
}

int chat_render(const struct tokenizer *t, const struct template *template, struct value *messages,
                const struct value *beside, bool generation_prompt, struct rendered *out, struct error *e)
{
    return render(t, template, messages, beside, generation_prompt, NULL, out, e);
}

/* --- where the answers are, in bytes ---------------------------------------------------------- */

/* The messages whose answers are searched for, and their rendering. */
struct search {
    const struct tokenizer *t;
    const struct template *template;
    const struct value *messages;
    const struct value *beside;
    struct rendered *whole;
    struct error *e;
};

static bool begins_with(const struct text *whole, const struct text *part)
{
    return part->n <= whole->n && (!part->n || !memcmp(whole->at, part->at, part->n));
}

/* Returns the first n messages. */
static int render_first(const struct search *s, uint32_t n, bool prompt, struct rendered *out)
{
    struct value first = *s->messages; /* the items are shared */
    first.count = n;
    return render(s->t, s->template, &first, s->beside, prompt, training_date, out, s->e);
}

static enum chat_failure not_found(const struct search *s, uint32_t i, const char *why)
{
    error_set(
        s->e, PL_USAGE,
        "the answer in message %u is not found in the text: %s. Use a template with {%% generation %%} (data.template)",
        i + 1, why);
    return CHAT_ANSWERS;
}

/* Returns the answer of a text that goes on otherwise than the generation prompt, such as
 * "<think>", does: it begins where they part, but not behind the first byte of the message
 * itself. */
static enum chat_failure find_parting(const struct search *s, uint32_t i, const struct text *end,
                                      const struct text *prompted, uint32_t *begin)
{
    struct rendered before = {0};
    uint32_t common = 0, k = 0;
    enum chat_failure f = render_first(s, i, false, &before) ? CHAT_RENDER : CHAT_FINE;
    while (common < end->n && common < prompted->n && end->at[common] == prompted->at[common]) common++;
    if (!f && (!begins_with(end, &before.text) || before.text.n > common))
        f = not_found(s, i, "the template writes the messages before it otherwise once it follows them");
    if (!f) {
        while (k < s->whole->data.n && s->whole->data.at[k].end <= before.text.n) k++;
        const uint32_t open = (uint32_t)before.text.n, own = k < s->whole->data.n ? s->whole->data.at[k].begin : common;
        *begin = own < open ? open : own < common ? own : common;
    }
    rendered_free(&before);
    return f;
}

static struct byte_range turn_of(const struct rendered *r, uint32_t i)
{
    return i < r->turns.n ? r->turns.at[i] : (struct byte_range){0, 0};
}

/* Returns the bytes of message i that the template writes. */
static uint32_t count_written(const struct rendered *r, uint32_t i)
{
    const struct byte_range turn = turn_of(r, i);
    uint32_t n = 0;
    for (uint32_t k = 0; k < r->data.n; k++) {
        const struct byte_range d = r->data.at[k];
        if (d.begin < turn.end && d.end > turn.begin)
            n += (d.end < turn.end ? d.end : turn.end) - (d.begin > turn.begin ? d.begin : turn.begin);
    }
    return n;
}

/* Returns the text up to the end of message i. Where the template writes something else once others
 * follow it, such as no empty thoughts, it is what the template's loop wrote for the message, if
 * that is still all of it. */
static enum chat_failure find_end(const struct search *s, uint32_t i, struct text *end)
{
    struct rendered after = {0};
    enum chat_failure f = CHAT_FINE;
    *end = s->whole->text; /* a part of which it is */
    if (i + 1 == s->messages->count) return CHAT_FINE;
    if (render_first(s, i + 1, false, &after)) f = CHAT_RENDER;
    else if (begins_with(&s->whole->text, &after.text)) end->n = after.text.n;
    else if (turn_of(s->whole, i).end && count_written(s->whole, i) == count_written(&after, i))
        end->n = turn_of(s->whole, i).end;
    else f = not_found(s, i, "the template drops a part of it once other messages follow it, such as thoughts");
    rendered_free(&after);
    return f;
}

/* Returns the answer in message i of a template without {% generation %}. */
static enum chat_failure find_answer(const struct search *s, uint32_t i, struct byte_range *out)
{
    struct rendered before = {0};
    struct text end;
    enum chat_failure f = find_end(s, i, &end);
    if (!f && render_first(s, i, true, &before)) f = CHAT_RENDER;
    if (!f) *out = (struct byte_range){(uint32_t)before.text.n, (uint32_t)end.n};
    if (!f && !begins_with(&end, &before.text)) f = find_parting(s, i, &end, &before.text, &out->begin);
    if (f == CHAT_RENDER) error_prepend(s->e, "while message %u is located", i + 1);
    rendered_free(&before);
    return f;
}

/* Rendering the text once more for each answer takes time that grows with the square of their
 * number. In a longer conversation than SHORT messages only the first LEARNED answers and the last
 * one are found so. If all of them begin and end at the same distances from the beginning and the
 * end of what the template's loop writes for their messages, then the others do, too. */
enum { SHORT = 64, LEARNED = 8, MOST_RENDERED = 256 };

struct likeness {
    bool known, differ;
    struct byte_range first;    /* the answer that the others are compared with... */
    uint32_t head, tail;        /* ...and what its message has before and behind it */
};

static void compare_answer(const struct search *s, struct likeness *a, struct byte_range turn, struct byte_range answer)
{
    const uint32_t head = answer.begin - turn.begin, tail = turn.end - answer.end;
    if (!a->known) *a = (struct likeness){.known = true, .first = answer, .head = head, .tail = tail};
    a->differ |= turn.begin > answer.begin || turn.end < answer.end || head != a->head || tail != a->tail ||
                 memcmp(s->whole->text.at + turn.begin, s->whole->text.at + a->first.begin - a->head, head);
}

/* Finds the answer in a turn. False: the message does not look like those that were compared. */
static bool find_alike(const struct search *s, const struct likeness *a, struct byte_range turn, struct byte_range *out)
{
    *out = (struct byte_range){turn.begin + a->head, turn.end - a->tail};
    return turn.end - turn.begin >= a->head + a->tail &&
           !memcmp(s->whole->text.at + turn.begin, s->whole->text.at + a->first.begin - a->head, a->head);
}

static enum chat_failure find_answers(const struct search *s)
{
    const uint32_t n = s->messages->count;
    struct likeness alike = {0};
    uint32_t found = 0;
    enum chat_failure f = CHAT_FINE;
    if (template_marks_answers(s->template)) return CHAT_FINE;
    s->whole->answers.n = 0;
    for (uint32_t i = 0; i < n && !f; i++) {
        const struct value *role = value_get(s->messages->items[i], "role");
        const struct byte_range turn = turn_of(s->whole, i);
        struct byte_range answer;
        if (!role || role->kind != VALUE_STRING || strcmp(role->text, "assistant")) continue;
        if (n <= SHORT || found < LEARNED || alike.differ || i + 1 == n) {
            f = found > MOST_RENDERED && alike.differ
                    ? not_found(s, i, "the conversation is long, and its messages are not written alike")
                    : find_answer(s, i, &answer);
            if (!f) compare_answer(s, &alike, turn, answer);
        } else if (!find_alike(s, &alike, turn, &answer)) {
            f = find_answer(s, i, &answer);
            alike.differ = true;
        }
        if (!f && answer.begin < answer.end) vec_push(&s->whole->answers, answer);
        found++;
    }
    if (!f && n > SHORT && alike.differ && found > MOST_RENDERED)
        f = not_found(s, n - 1, "the conversation is long, and its messages are not written alike");
    return f;
}

/* --- tokens ----------------------------------------------------------------------------------- */

/* Returns the first byte of a token that is no blank, or its first byte. */
static uint32_t word_of(const char *text, struct token t)
{
    uint32_t at = t.begin;
    while (at < t.end && strchr(" \t\r\n", text[at]) && text[at]) at++;
    return at < t.end ? at : t.begin;
}

/* Finds the tokens of each answer; both lists ascend. */
static void map_answers(const struct rendered *r, struct chat_tokens *out)
{
    uint32_t k = 0;
    for (uint32_t i = 0; i < r->answers.n; i++) {
        while (k < out->tokens.n && out->tokens.at[k].end <= r->answers.at[i].begin) k++;
        const uint32_t first = k;
        while (k < out->tokens.n && word_of(r->text.at, out->tokens.at[k]) < r->answers.at[i].end) k++;
        if (k > first) vec_push(&out->answers, ((struct byte_range){first, k}));
    }
}

/* Reports whether the last of the first n tokens that is no blank is special. */
static bool ends(const struct tokenizer *t, const struct text *text, const struct chat_tokens *c, uint32_t n)
{
    const struct token *x = c->tokens.at;
    while (n && x[n - 1].begin < x[n - 1].end &&
           strspn(text->at + x[n - 1].begin, " \t\r\n") >= x[n - 1].end - x[n - 1].begin)
        n--;
    return n && (tokenizer_is_special(t, x[n - 1].id) || x[n - 1].id == tokenizer_eos(t));
}

/* Encodes a rendered text, with its images. */
static enum chat_failure encode(const struct tokenizer *t, struct rendered *r, const struct text_images *images,
                                struct chat_tokens *out, struct error *e)
{
    struct range_list spans = {0};
    enum chat_failure f = CHAT_FINE;
    if (!images)
        f = tokenizer_encode(t, r->text.n ? r->text.at : "", r->text.n, r->data.at, r->data.n, false, &out->tokens, e)
                ? CHAT_ENCODE
                : CHAT_FINE;
    else if (image_text_expand(images, r, &spans, e)) f = CHAT_IMAGES;
    else if (image_text_encode(images, t, r, &spans, &out->tokens, &out->images, e)) f = CHAT_ENCODE;
    if (!f) {
        map_answers(r, out);
        out->answer_ends = out->answers.n && ends(t, &r->text, out, out->answers.at[out->answers.n - 1].end);
        out->text_ends = ends(t, &r->text, out, out->tokens.n);
    }
    vec_free(&spans);
    return f;
}

enum chat_failure chat_encode(const struct tokenizer *t, const struct template *template, struct value *messages,
                              const struct value *beside, const struct text_images *images, struct chat_tokens *out,
                              struct text *text, struct error *e)
{
    struct rendered whole = {0};
    struct bump b = {0};
    enum chat_failure f = CHAT_FINE;
    *out = (struct chat_tokens){0};
    if (images) messages = image_text_messages(images, messages, &b), template = image_text_template(images, template);
    if (render(t, template, messages, beside, false, training_date, &whole, e)) f = CHAT_RENDER;
    if (!f) f = find_answers(&(struct search){t, template, messages, beside, &whole, e});
    if (f == CHAT_ANSWERS) whole.answers.n = 0;
    if (!f || f == CHAT_ANSWERS) {
        struct error ignored;
        const enum chat_failure failed = encode(t, &whole, images, out, f ? &ignored : e);
        if (!f) f = failed;
    }
    if ((!f || f == CHAT_ANSWERS) && text) *text = whole.text, whole.text = (struct text){0};
    rendered_free(&whole);
    bump_free(&b);
    return f;
}

enum chat_failure chat_encode_prompt(const struct tokenizer *t, const struct template *template, struct value *messages,
                                     const struct value *beside, const struct text_images *images,
                                     struct chat_tokens *out, struct text *text, struct error *e)
{
    struct rendered r = {0};
    struct bump b = {0};
    enum chat_failure f = CHAT_FINE;
    *out = (struct chat_tokens){0};
    if (images) messages = image_text_messages(images, messages, &b), template = image_text_template(images, template);
    if (chat_render(t, template, messages, beside, true, &r, e)) f = CHAT_RENDER;
    r.answers.n = 0;
    if (!f) f = encode(t, &r, images, out, e);
    if (!f && text) *text = r.text, r.text = (struct text){0};
    rendered_free(&r);
    bump_free(&b);
    return f;
}

static bool begins_with_token(const char *text, const char *token)
{
    return token && *token && !strncmp(text, token, strlen(token));
}

/* Encodes text with the special tokens that the tokenizer adds, which may end with EOS; with none
 * if the text begins with BOS. Text with images is encoded as a chat's. */
static enum chat_failure encode_text(const struct tokenizer *t, struct rendered *r, const struct text_images *images,
                                     struct chat_tokens *out, struct error *e)
{
    if (images) return encode(t, r, images, out, e);
    const bool special = !begins_with_token(r->text.n ? r->text.at : "", tokenizer_special(t, "bos_token"));
    if (tokenizer_encode(t, r->text.n ? r->text.at : "", r->text.n, NULL, 0, special, &out->tokens, e))
        return CHAT_ENCODE;
    map_answers(r, out);
    return CHAT_FINE;
}

/* Extends the last answer to EOS, which belongs to it; an image before it does not. */
static void add_end(struct chat_tokens *out)
{
    const uint32_t n = out->tokens.n, image = out->images.n ? out->images.at[out->images.n - 1].end : 0;
    struct byte_range *last = out->answers.n ? &out->answers.at[out->answers.n - 1] : NULL;
    if (last && image <= last->end) last->end = n;
    else if (last && image < n) vec_push(&out->answers, ((struct byte_range){image, n}));
}

enum chat_failure chat_encode_text(const struct tokenizer *t, const char *prompt, const char *completion,
                                   const struct text_images *images, struct chat_tokens *out, struct error *e)
{
    const uint32_t p = (uint32_t)strlen(prompt), c = (uint32_t)strlen(completion);
    const int32_t eos = tokenizer_eos(t);
    struct rendered r = {0};
    *out = (struct chat_tokens){0};
    text_append(&r.text, prompt, p);
    text_append(&r.text, completion, c);
    vec_push(&r.answers, ((struct byte_range){p, p + c}));
    const enum chat_failure f = encode_text(t, &r, images, out, e);
    struct token_list *l = &out->tokens;
    const uint32_t end = (uint32_t)r.text.n;
    rendered_free(&r);
    if (f) return f;
    if (eos >= 0 && (!l->n || l->at[l->n - 1].id != eos)) vec_push(l, ((struct token){eos, end, end}));
    add_end(out);
    return CHAT_FINE;
}
