/*
 * conversation.c: see conversation.h.
 *
 * Each format has a function that appends messages. A message is normalised in one function
 * whatever the format is: its role by a table of the names that files use, its content to a string,
 * with images and videos taken out as references. The order of turns is checked at the end, for all
 * formats.
 */
#include "data/text/conversation.h"

#include <strings.h>

#include "data/images/image_files.h"
#include "io/json.h"
#include "text/template/chat_images.h"

/* ---- Turns ---- */

static bool is_by_column(const struct value *v)
{
    if (!v || v->kind != VALUE_MAP || !v->count) return false;
    for (uint32_t i = 0; i < v->count; i++)
        if (v->items[i]->kind != VALUE_LIST || v->items[i]->count != v->items[0]->count) return false;
    return true;
}

/* Turns {from: [a, b], value: [c, d]}, as older tables of Hugging Face datasets have a list of
 * structs, becomes [{from: a, value: c}, {from: b, value: d}] in `b`. Any other value is returned
 * as it is. */
static const struct value *turns_by_row(struct bump *b, const struct value *v)
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

static const char *const fault_names[SAMPLE_FAULTS] = {
    [SAMPLE_FINE] = "usable",
    [SAMPLE_JSON] = "malformed JSON",
    [SAMPLE_KEYS] = "keys of no known format",
    [SAMPLE_TYPE] = "a value of an unexpected type",
    [SAMPLE_ROLE] = "unknown role",
    [SAMPLE_ORDER] = "turns out of order",
    [SAMPLE_ANSWER] = "no answer",
    [SAMPLE_MEDIA] = "images or videos, which this run does not read",
    [SAMPLE_IMAGES] = "more or fewer <image> than images, or <video> than videos",
    [SAMPLE_FILES] = "an image or a video that cannot be read",
    [SAMPLE_TEMPLATE] = "the chat template fails",
    [SAMPLE_SPANS] = "answers not found in the rendered text",
    [SAMPLE_TOKENS] = "the tokenizer fails",
};

const char *conversation_fault_name(enum conversation_fault f) { return fault_names[f]; }

/* The sample that is being read. */
struct turn_reader {
    const char *joint;
    struct bump *b;
    struct conversation *out;
    struct error *e;
};

static enum conversation_fault fault(const struct turn_reader *r, enum conversation_fault f, const char *what)
{
    error_set(r->e, PL_USAGE, "%s", what);
    return f;
}

static enum conversation_fault wrong_type(const struct turn_reader *r, const char *key, const struct value *v,
                                          const char *expected)
{
    char found[96];
    error_set(r->e, PL_USAGE, "%s is %s, expected %s", key, v ? value_describe(v, found) : "missing", expected);
    return SAMPLE_TYPE;
}

static bool given(const struct value *v) { return v && v->kind != VALUE_NULL; }
static bool is_string(const struct value *v) { return v && v->kind == VALUE_STRING; }

/* --- roles ------------------------------------------------------------------------------- */

enum role { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, ROLE_CALL, ROLE_TOOL, ROLE_UNKNOWN };
static const char *const role_names[] = {"system", "user", "assistant", "assistant", "tool"};

static enum role find_role(const char *name)
{
    static const struct {
        const char *name;
        enum role role;
    } known[] = {
        {"system", ROLE_SYSTEM},      {"developer", ROLE_SYSTEM},    {"user", ROLE_USER},
        {"human", ROLE_USER},         {"assistant", ROLE_ASSISTANT}, {"gpt", ROLE_ASSISTANT},
        {"model", ROLE_ASSISTANT},    {"chatgpt", ROLE_ASSISTANT},   {"bot", ROLE_ASSISTANT},
        {"function_call", ROLE_CALL}, {"tool_call", ROLE_CALL},      {"tool", ROLE_TOOL},
        {"observation", ROLE_TOOL},   {"function", ROLE_TOOL},       {"tool_response", ROLE_TOOL},
        {"ipython", ROLE_TOOL},
    };
    for (size_t i = 0; i < COUNT(known); i++)
        if (!strcasecmp(name, known[i].name)) return known[i].role;
    return ROLE_UNKNOWN;
}

/* --- images and videos --------------------------------------------------------------------- */

const char *media_path(const struct value *v)
{
    static const char *const keys[] = {"path", "url", "image", "image_url", "video", "video_url", "file", "data"};
    if (is_string(v)) return v->text;
    for (size_t i = 0; i < COUNT(keys) && v && v->kind == VALUE_MAP; i++) {
        const struct value *x = value_get(v, keys[i]);
        const char *path = is_string(x) ? x->text : x && x->kind == VALUE_MAP ? media_path(x) : NULL;
        if (path) return path;
    }
    return NULL;
}

static enum conversation_fault add_media(struct turn_reader *r, const char *key, const struct value *v)
{
    if (!given(v)) return SAMPLE_FINE;
    if (v->kind == VALUE_LIST) {
        enum conversation_fault f = SAMPLE_FINE;
        for (uint32_t i = 0; i < v->count && !f; i++) f = add_media(r, key, v->items[i]);
        return f;
    }
    const char *path = media_path(v);
    if (!path) return wrong_type(r, key, v, "a path, a list of paths, or maps with the key path or url");
    const struct value *modality = v->kind == VALUE_MAP ? value_get(v, "modality") : NULL;
    const char *volume = media_volume(path, is_string(modality) ? modality->text : NULL, r->b);
    if (strstr(key, "video")) path = bump_format(r->b, VIDEO_REFERENCE "%s", path);
    else if (volume) path = volume;
    value_append(r->b, r->out->media, value_string(r->b, path));
    r->out->videos += media_is_video(path);
    return SAMPLE_FINE;
}

static const char *const media_keys[] = {"image", "images", "video", "videos"};
#define MODALITY_PATHS "modality_paths"

/* Adds the volumes of a modality: a path, or a list of paths; null: there are none. */
static enum conversation_fault add_volumes(struct turn_reader *r, const char *modality, const struct value *v)
{
    const char *path = media_path(v);
    enum conversation_fault f = SAMPLE_FINE;
    if (!given(v)) return SAMPLE_FINE;
    if (v->kind == VALUE_LIST) {
        for (uint32_t i = 0; i < v->count && !f; i++) f = add_volumes(r, modality, v->items[i]);
        return f;
    }
    if (!path || strchr(modality, ':'))
        return wrong_type(r, MODALITY_PATHS, v, "a map from modalities to paths, or to lists of paths");
    value_append(r->b, r->out->media, value_string(r->b, bump_format(r->b, VOLUME_REFERENCE "%s:%s", modality, path)));
    return SAMPLE_FINE;
}

static enum conversation_fault add_all_media(struct turn_reader *r, const struct value *sample)
{
    enum conversation_fault f = SAMPLE_FINE;
    for (size_t i = 0; i < COUNT(media_keys) && !f; i++)
        f = add_media(r, media_keys[i], value_get(sample, media_keys[i]));
    const struct value *volumes = value_get(sample, MODALITY_PATHS);
    if (f || !given(volumes)) return f;
    if (volumes->kind != VALUE_MAP)
        return wrong_type(r, MODALITY_PATHS, volumes, "a map from modalities to paths, or to lists of paths");
    for (uint32_t i = 0; i < volumes->count && !f; i++) f = add_volumes(r, volumes->items[i]->key, volumes->items[i]);
    return f;
}

/* --- messages ------------------------------------------------------------------------------ */

/* Appends a part; `joint` sets an image or a video apart. */
static void join_part(struct text *out, const char *part, const char *joint, bool media, bool *after_media)
{
    if (!*part) return;
    if (out->n && (media || *after_media)) text_append(out, joint, strlen(joint));
    text_append(out, part, strlen(part));
    *after_media = media;
}

/* Joins the parts; images and videos become references, and <image> or <video> in the text. */
static enum conversation_fault read_parts(struct turn_reader *r, const struct value *parts, struct text *out)
{
    bool after_media = false;
    for (uint32_t i = 0; i < parts->count; i++) {
        const struct value *p = parts->items[i], *type = value_get(p, "type"), *text = value_get(p, "text");
        enum conversation_fault f = SAMPLE_FINE;
        if (is_string(p)) text = p;
        else if (p->kind != VALUE_MAP) return wrong_type(r, "a part of the content", p, "a map with the key type");
        if (is_string(text) && (!is_string(type) || strstr(type->text, "text")))
            join_part(out, text->text, r->joint, false, &after_media);
        else if (is_string(type) && (strstr(type->text, "image") || strstr(type->text, "video"))) {
            join_part(out, strstr(type->text, "image") ? IMAGE_PLACEHOLDER : VIDEO_PLACEHOLDER, r->joint, true,
                      &after_media);
            if (media_path(p)) f = add_media(r, type->text, p);
        } else return wrong_type(r, "the type of a part of the content", type, "text, image or video");
        if (f) return f;
    }
    return SAMPLE_FINE;
}

static enum conversation_fault read_content(struct turn_reader *r, const struct value *content, const char **out)
{
    *out = "";
    if (!given(content)) return SAMPLE_FINE;
    if (is_string(content)) {
        *out = content->text;
        return SAMPLE_FINE;
    }
    if (content->kind != VALUE_LIST)
        return wrong_type(r, "the content of a message", content, "a string or a list of parts");
    struct text joined = {0};
    enum conversation_fault f = read_parts(r, content, &joined);
    if (!f && joined.n) *out = bump_format(r->b, "%s", joined.at);
    text_free(&joined);
    return f;
}

static void add_message(struct turn_reader *r, const char *role, const char *content)
{
    struct value *m = value_new(r->b, VALUE_MAP);
    value_put(r->b, m, "role", value_string(r->b, role));
    value_put(r->b, m, "content", value_string(r->b, content));
    value_append(r->b, r->out->messages, m);
}

/* Appends {name, arguments} as {type: function, function: {name, arguments}}. */
static void append_call(struct turn_reader *r, struct value *calls, const struct value *call)
{
    struct value *copy = value_copy(r->b, call);
    if (!value_get(call, "function")) {
        struct value *wrapped = value_new(r->b, VALUE_MAP);
        value_put(r->b, wrapped, "type", value_string(r->b, "function"));
        value_put(r->b, wrapped, "function", copy);
        copy = wrapped;
    }
    value_append(r->b, calls, copy);
}

/* Adds the calls of a function_call turn, whose content is JSON: a call, or a list of them. */
static enum conversation_fault add_calls(struct turn_reader *r, const char *content)
{
    struct value *parsed;
    struct error why;
    if (json_parse(content, strlen(content), r->b, &parsed, &why) ||
        (parsed->kind != VALUE_MAP && parsed->kind != VALUE_LIST))
        return fault(r, SAMPLE_TYPE,
            "a function_call turn is not JSON: expected {\"name\": ..., \"arguments\": {...}}, or a list of them");
    struct value *calls = value_new(r->b, VALUE_LIST);
    if (parsed->kind == VALUE_MAP) append_call(r, calls, parsed);
    for (uint32_t i = 0; i < parsed->count && parsed->kind == VALUE_LIST; i++) append_call(r, calls, parsed->items[i]);
    add_message(r, "assistant", "");
    struct value *m = r->out->messages->items[r->out->messages->count - 1];
    value_put(r->b, m, "tool_calls", calls);
    return SAMPLE_FINE;
}

/* Copies the keys other than role and content: tool_calls, name, reasoning_content, ... */
static void copy_rest(struct turn_reader *r, const struct value *from)
{
    struct value *m = r->out->messages->items[r->out->messages->count - 1];
    for (uint32_t i = 0; i < from->count; i++) {
        const char *key = from->items[i]->key;
        if (strcmp(key, "role") && strcmp(key, "from") && strcmp(key, "content") && strcmp(key, "value") &&
            given(from->items[i]))
            value_put(r->b, m, key, value_copy(r->b, from->items[i]));
    }
}

static enum conversation_fault read_message(struct turn_reader *r, const struct value *m, uint32_t turn)
{
    char where[48];
    const char *content;
    snprintf(where, sizeof where, "turn %u", turn + 1);
    if (m->kind != VALUE_MAP) return wrong_type(r, where, m, "a map with role and content, or with from and value");
    const struct value *role = value_get(m, "role"), *said = value_get(m, "content");
    if (!given(role)) role = value_get(m, "from");
    if (!given(said)) said = value_get(m, "value");
    snprintf(where, sizeof where, "the role of turn %u", turn + 1);
    if (!is_string(role)) return wrong_type(r, where, role, "a string");
    enum conversation_fault f = read_content(r, said, &content);
    if (f) return f;
    const enum role known = find_role(role->text);
    if (known == ROLE_UNKNOWN) {
        error_set(r->e, PL_USAGE,
                  "turn %u has the role \"%.60s\"; known are system, user (human), assistant (gpt), tool (observation) "
                  "and function_call", turn + 1, role->text);
        return SAMPLE_ROLE;
    }
    if (known == ROLE_CALL) return add_calls(r, content);
    add_message(r, role_names[known], content);
    copy_rest(r, m);
    return SAMPLE_FINE;
}

static enum conversation_fault read_messages(struct turn_reader *r, const char *key, const struct value *list)
{
    enum conversation_fault f = SAMPLE_FINE;
    list = turns_by_row(r->b, list);
    if (!list || list->kind != VALUE_LIST) return wrong_type(r, key, list, "a list of messages");
    for (uint32_t i = 0; i < list->count && !f; i++) f = read_message(r, list->items[i], i);
    return f;
}

/* --- the formats ------------------------------------------------------------------------------ */

static enum conversation_fault read_chat(struct turn_reader *r, const struct value *sample)
{
    static const char *const keys[] = {"messages", "conversations", "conversation"};
    size_t i = 0;
    while (!value_get(sample, keys[i])) i++;
    return read_messages(r, keys[i], value_get(sample, keys[i]));
}

/* Returns a string under a key; missing or null is "". */
static enum conversation_fault read_string(const struct turn_reader *r, const struct value *sample, const char *key,
                                           const char **out)
{
    const struct value *v = value_get(sample, key);
    *out = "";
    if (!given(v)) return SAMPLE_FINE;
    if (!is_string(v)) return wrong_type(r, key, v, "a string");
    *out = v->text;
    return SAMPLE_FINE;
}

static enum conversation_fault read_alpaca(struct turn_reader *r, const struct value *sample)
{
    const struct value *history = value_get(sample, "history");
    const char *instruction, *input, *output;
    enum conversation_fault f = read_string(r, sample, "instruction", &instruction);
    if (!f) f = read_string(r, sample, "input", &input);
    if (!f) f = read_string(r, sample, "output", &output);
    if (f) return f;
    if (given(history) && history->kind != VALUE_LIST)
        return wrong_type(r, "history", history, "a list of pairs, [question, answer]");
    for (uint32_t i = 0; given(history) && i < history->count; i++) {
        const struct value *pair = history->items[i], *question = value_at(pair, 0), *answer = value_at(pair, 1);
        if (!is_string(question) || !is_string(answer))
            return wrong_type(r, "an item of history", pair, "a pair of strings, [question, answer]");
        add_message(r, "user", question->text);
        add_message(r, "assistant", answer->text);
    }
    add_message(r, "user",
                *instruction && *input ? bump_format(r->b, "%s\n%s", instruction, input)
                : *input               ? input
                                       : instruction);
    add_message(r, "assistant", output);
    return SAMPLE_FINE;
}

static enum conversation_fault read_completion(struct turn_reader *r, const struct value *sample)
{
    const struct value *prompt = value_get(sample, "prompt"), *completion = value_get(sample, "completion");
    if (prompt->kind == VALUE_LIST || (completion && completion->kind == VALUE_LIST)) {
        enum conversation_fault f = read_messages(r, "prompt", prompt);
        return f ? f : read_messages(r, "completion", completion);
    }
    r->out->messages = NULL;
    enum conversation_fault f = read_string(r, sample, "prompt", &r->out->prompt);
    return f ? f : read_string(r, sample, "completion", &r->out->completion);
}

static enum conversation_fault read_text(struct turn_reader *r, const struct value *sample)
{
    r->out->messages = NULL;
    return read_string(r, sample, "text", &r->out->completion);
}

/* In the order in which they are tried: files have keys of other formats beside their own. */
static const struct format {
    const char *key, *second; /* a sample of the format has both */
    const char *name;
    enum conversation_fault (*read)(struct turn_reader *r, const struct value *sample);
} formats[] = {
    {"messages", NULL, "OpenAI messages", read_chat},
    {"conversations", NULL, "LLaVA or ShareGPT conversations", read_chat},
    {"conversation", NULL, "ShareGPT conversations", read_chat},
    {"instruction", "output", "Alpaca instructions", read_alpaca},
    {"prompt", "completion", "prompts and completions", read_completion},
    {"text", NULL, "texts", read_text},
};

static const struct format *find_format(const struct value *sample)
{
    for (size_t i = 0; i < COUNT(formats); i++)
        if (value_get(sample, formats[i].key) && (!formats[i].second || value_get(sample, formats[i].second)))
            return &formats[i];
    return NULL;
}

const char *conversation_format(const struct value *sample)
{
    const struct format *f = find_format(sample);
    return f ? f->name : NULL;
}

bool conversation_key(const char *key)
{
    static const char *const beside[] = {"input", "history", "system", "tools"};
    for (size_t i = 0; i < COUNT(formats); i++)
        if (!strcmp(key, formats[i].key) || (formats[i].second && !strcmp(key, formats[i].second))) return true;
    for (size_t i = 0; i < COUNT(beside); i++)
        if (!strcmp(key, beside[i])) return true;
    for (size_t i = 0; i < COUNT(media_keys); i++)
        if (!strcmp(key, media_keys[i])) return true;
    return !strcmp(key, MODALITY_PATHS);
}

/* --- system prompt and tools ------------------------------------------------------------------ */

static bool has_role(const struct value *messages, uint32_t i, const char *role)
{
    return i < messages->count && !strcmp(value_get(messages->items[i], "role")->text, role);
}

/* Returns the sample's own system turn, else its key, else the configuration's. */
static enum conversation_fault add_system(struct turn_reader *r, const struct value *sample, const char *standard)
{
    const char *own;
    enum conversation_fault f = read_string(r, sample, "system", &own);
    const char *system = *own ? own : standard;
    if (f || !system || !*system || has_role(r->out->messages, 0, "system")) return f;
    struct value *rest = r->out->messages;
    r->out->messages = value_new(r->b, VALUE_LIST);
    add_message(r, "system", system);
    for (uint32_t i = 0; i < rest->count; i++) value_append(r->b, r->out->messages, rest->items[i]);
    return SAMPLE_FINE;
}

/* Reads what stands beside the messages: the template's variables, and tools, a list of functions
 * or JSON text of one; a function without its wrapper gets it. */
static enum conversation_fault read_beside(struct turn_reader *r, const struct value *sample)
{
    const struct value *tools = value_get(sample, "tools"), *options = value_get(sample, "chat_template_kwargs");
    struct value *list, *parsed;
    struct error why;
    if (options) value_put(r->b, r->out->beside, "chat_template_kwargs", value_copy(r->b, options));
    if (is_string(tools)) {
        if (!tools->text[strspn(tools->text, " \n")]) return SAMPLE_FINE;
        if (json_parse(tools->text, strlen(tools->text), r->b, &parsed, &why))
            return fault(r, SAMPLE_TYPE, "tools is a string that is not JSON, expected a list of functions");
        tools = parsed;
    }
    if (!given(tools)) return SAMPLE_FINE;
    if (tools->kind != VALUE_LIST) return wrong_type(r, "tools", tools, "a list of functions");
    list = value_new(r->b, VALUE_LIST);
    for (uint32_t i = 0; i < tools->count; i++) append_call(r, list, tools->items[i]);
    if (list->count) value_put(r->b, r->out->beside, "tools", list);
    return SAMPLE_FINE;
}

/* --- the order of turns ----------------------------------------------------------------------- */

static bool answers(const struct value *m) { return *value_get(m, "content")->text || value_get(m, "tool_calls"); }

/* Reports whether a turn may follow another by their roles: system is first, questions follow the
 * beginning, a system turn or an answer, answers follow a question or a tool, and tools follow an
 * answer or another tool. */
static bool may_follow(const char *role, const char *before)
{
    if (!strcmp(role, "system")) return !before;
    if (!strcmp(role, "user")) return !before || strcmp(before, "user");
    if (!strcmp(role, "assistant")) return before && (!strcmp(before, "user") || !strcmp(before, "tool"));
    return before && (!strcmp(before, "assistant") || !strcmp(before, "tool"));
}

static enum conversation_fault check_turns(const struct turn_reader *r)
{
    const struct value *messages = r->out->messages;
    const char *before = NULL;
    bool answered = false;
    for (uint32_t i = 0; i < messages->count; i++) {
        const struct value *m = messages->items[i];
        const char *role = value_get(m, "role")->text;
        if (!may_follow(role, before)) {
            if (before)
                error_set(r->e, PL_USAGE,
                          "message %u is by %s, after one by %s; expected user and assistant in turns, tool after "
                          "assistant, and system first", i + 1, role, before);
            else error_set(r->e, PL_USAGE, "the first message is by %s, expected system or user", role);
            return SAMPLE_ORDER;
        }
        answered |= !strcmp(role, "assistant") && answers(m);
        before = role;
    }
    if (!answered)
        return fault(r, SAMPLE_ANSWER, "no turn of the assistant says anything, so that there is nothing to train on");
    if (strcmp(before, "assistant"))
        return fault(r, SAMPLE_ANSWER, "the last turn is not the assistant's: its question has no answer");
    return SAMPLE_FINE;
}

/* --- a sample --------------------------------------------------------------------------------- */

static enum conversation_fault unknown_keys(const struct turn_reader *r, const struct value *sample)
{
    struct text keys = {0};
    for (uint32_t i = 0; i < sample->count && i < 8; i++)
        text_printf(&keys, "%s%.40s", i ? ", " : "", sample->items[i]->key);
    error_set(r->e, PL_USAGE, "its keys are %s%s; expected " CONVERSATION_KEYS, keys.n ? keys.at : "none",
              sample->count > 8 ? ", ..." : "");
    text_free(&keys);
    return SAMPLE_KEYS;
}

enum conversation_fault conversation_parse(const char *json, size_t n, uint64_t most, struct bump *b,
                                           struct value **out, struct error *e)
{
    static const char first[] = "line 1, "; /* the caller names the line of the file */
    if (!json_parse_within(json, n, most, b, out, e)) return SAMPLE_FINE;
    if (!strncmp(e->text, first, sizeof first - 1))
        memmove(e->text, e->text + sizeof first - 1, strlen(e->text + sizeof first - 1) + 1);
    return SAMPLE_JSON;
}

enum conversation_fault conversation_read(const struct value *sample, const char *system, const char *joint,
                                          struct bump *b, struct conversation *out, struct error *e)
{
    struct turn_reader r = {joint, b, out, e};
    const struct format *format = find_format(sample);
    *out = (struct conversation){.messages = value_new(b, VALUE_LIST), .beside = value_new(b, VALUE_MAP), .prompt = "",
                                 .completion = "", .media = value_new(b, VALUE_LIST)};
    if (!format) return unknown_keys(&r, sample);
    enum conversation_fault f = add_all_media(&r, sample);
    if (!f) f = format->read(&r, sample);
    if (!f && !out->messages) return *out->completion ? SAMPLE_FINE : fault(&r, SAMPLE_ANSWER, "its text is empty");
    if (!f) f = read_beside(&r, sample);
    if (!f) f = add_system(&r, sample, system);
    return f ? f : check_turns(&r);
}

static bool has_turns(const struct value *sample)
{
    return value_get(sample, "messages") || value_get(sample, "conversations") || value_get(sample, "conversation");
}

/* Finishes a chat once its turns are read. */
static enum conversation_fault end_chat(struct turn_reader *r, const struct value *sample)
{
    enum conversation_fault f = read_beside(r, sample);
    return f || r->out->messages->count ? f : fault(r, SAMPLE_TYPE, "messages is an empty list");
}

enum conversation_fault conversation_read_chat(const struct value *chat, const char *joint, struct bump *b,
                                               struct conversation *out, struct error *e)
{
    struct turn_reader r = {joint, b, out, e};
    const bool map = chat->kind == VALUE_MAP;
    *out = (struct conversation){.messages = value_new(b, VALUE_LIST), .beside = value_new(b, VALUE_MAP), .prompt = "",
                                 .completion = "", .media = value_new(b, VALUE_LIST)};
    enum conversation_fault f = map ? add_all_media(&r, chat) : SAMPLE_FINE;
    if (!f && map && !has_turns(chat)) f = unknown_keys(&r, chat);
    if (!f) f = map ? read_chat(&r, chat) : read_messages(&r, "messages", chat);
    return f ? f : end_chat(&r, chat);
}

enum conversation_fault conversation_read_prompt(const struct value *sample, const char *joint, struct bump *b,
                                                 struct conversation *out, struct error *e)
{
    struct turn_reader r = {joint, b, out, e};
    const struct value *prompt = value_get(sample, "prompt");
    if (has_turns(sample) || !prompt) return conversation_read_chat(sample, joint, b, out, e);
    *out = (struct conversation){.messages = value_new(b, VALUE_LIST), .beside = value_new(b, VALUE_MAP), .prompt = "",
                                 .completion = "", .media = value_new(b, VALUE_LIST)};
    enum conversation_fault f = add_all_media(&r, sample);
    if (f) return f;
    if (is_string(prompt)) {
        out->messages = NULL;
        out->prompt = prompt->text;
        return SAMPLE_FINE;
    }
    f = read_messages(&r, "prompt", prompt);
    return f ? f : end_chat(&r, sample);
}

/* --- images ----------------------------------------------------------------------------------- */

/* Counts how often a conversation has a word. */
static uint32_t count_word(const struct conversation *c, const char *word)
{
    uint32_t n = 0;
    const uint32_t texts = c->messages ? c->messages->count : 2;
    for (uint32_t i = 0; i < texts; i++) {
        const char *text = c->messages ? value_get(c->messages->items[i], "content")->text
                           : i         ? c->completion
                                       : c->prompt;
        for (const char *s = text; (s = strstr(s, word)); s += strlen(word)) n++;
    }
    return n;
}

uint32_t conversation_images(const struct conversation *c) { return count_word(c, IMAGE_PLACEHOLDER); }

static enum conversation_fault check_marks(const char *mark, uint32_t marks, const char *what, uint32_t n,
                                           struct error *e)
{
    if (marks == n) return SAMPLE_FINE;
    error_set(e, PL_USAGE, "its text has %u %s for %u %s%s; expected one where each %s stands", marks, mark, n, what,
              n == 1 ? "" : "s", what);
    return SAMPLE_IMAGES;
}

enum conversation_fault conversation_check_images(const struct conversation *c, struct error *e)
{
    return check_marks(IMAGE_PLACEHOLDER, conversation_images(c), "image", c->media->count - c->videos, e);
}

/* Images and videos on their way into the order of their words in the text. */
struct placing {
    struct bump *b;
    const struct value *from;
    uint32_t next[2]; /* in `from`: the next image, the next video */
    struct value *to;
};

static void place(struct placing *p, bool video)
{
    uint32_t *k = &p->next[video];
    while (media_is_video(p->from->items[*k]->text) != video) ++*k;
    value_append(p->b, p->to, p->from->items[(*k)++]);
}

/* Returns the text with <image> in place of <video>. */
static const char *place_text(struct placing *p, const char *text)
{
    struct text out = {0};
    for (;;) {
        const char *image = strstr(text, IMAGE_PLACEHOLDER), *video = strstr(text, VIDEO_PLACEHOLDER);
        const bool is_video = video && (!image || video < image);
        const char *at = is_video ? video : image;
        text_append(&out, text, at ? (size_t)(at - text) : strlen(text));
        if (!at) break;
        text_append(&out, IMAGE_PLACEHOLDER, strlen(IMAGE_PLACEHOLDER));
        place(p, is_video);
        text = at + strlen(is_video ? VIDEO_PLACEHOLDER : IMAGE_PLACEHOLDER);
    }
    const char *placed = out.n ? bump_format(p->b, "%s", out.at) : "";
    text_free(&out);
    return placed;
}

enum conversation_fault conversation_place_media(struct conversation *c, struct bump *b, struct error *e)
{
    const uint32_t images = c->media->count - c->videos, marks = c->videos ? count_word(c, VIDEO_PLACEHOLDER) : 0;
    if (!c->videos) return conversation_check_images(c, e);
    if (!images && !marks && conversation_images(c) == c->videos) return SAMPLE_FINE;
    enum conversation_fault f = conversation_check_images(c, e);
    if (!f) f = check_marks(VIDEO_PLACEHOLDER, marks, "video", c->videos, e);
    if (f) return f;
    struct placing p = {.b = b, .from = c->media, .to = value_new(b, VALUE_LIST)};
    if (!c->messages) c->prompt = place_text(&p, c->prompt), c->completion = place_text(&p, c->completion);
    for (uint32_t i = 0; c->messages && i < c->messages->count; i++) {
        struct value *m = c->messages->items[i];
        value_put(b, m, "content", value_string(b, place_text(&p, value_get(m, "content")->text)));
    }
    c->media = p.to;
    return SAMPLE_FINE;
}

/* --- splits ----------------------------------------------------------------------------------- */

uint64_t conversation_group(const struct value *media)
{
    const char *first = NULL, *video = NULL;
    for (uint32_t i = 0; media && i < media->count && !video; i++) {
        const char *name = media->items[i]->text;
        if (!first) first = name;
        if (media_is_video(name)) video = name;
    }
    if (video) first = video;
    const uint64_t hash = first ? hash_bytes(first, strlen(first), 0) : 0;
    return first && !hash ? 1 : hash;
}
