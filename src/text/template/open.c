/*
 * open.c: which template a model's folder has.
 *
 *   chat_template.jinja                          the template itself
 *   chat_template.json                           {"chat_template": ...}, beside an image processor
 *   tokenizer_config.json                        {..., "chat_template": ...}
 *   additional_chat_templates/NAME.jinja         further ones, by name
 *
 * "chat_template" is the text, or a list of {"name", "template"}.
 */
#include "io/file.h"
#include "io/json.h"
#include "text/template/template.h"

enum { TEMPLATE_BYTES = 4 << 20, CONFIG_BYTES = 64 << 20 };

static const struct {
    const char *name, *source;
} built_in[] = {
    {"chatml", "{% for message in messages %}"
               "{{ '<|im_start|>' + message['role'] + '\\n' }}"
               "{% if message['role'] == 'assistant' %}"
               "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}"
               "{% else %}"
               "{{ message['content'] + '<|im_end|>\\n' }}"
               "{% endif %}"
               "{% endfor %}"
               "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"},
    /* The conversation modes of LLaVA-Med and LLaVA 1.5, whose original folders have no
     * template. */
    {"mistral_instruct", "{% set first = namespace(text='') %}"
                         "{% for message in messages %}"
                         "{% if message['role'] == 'system' %}"
                         "{% set first.text = '<<SYS>>\\n' + message['content'] + '\\n<</SYS>>\\n\\n' %}"
                         "{% elif message['role'] == 'assistant' %}"
                         "{% generation %}{{ ' ' + message['content'] + ' ' + eos_token }}{% endgeneration %}"
                         "{% else %}"
                         "{{ '[INST] ' + first.text + message['content'] + ' [/INST]' }}{% set first.text = '' %}"
                         "{% endif %}"
                         "{% endfor %}"},
    /* SmolVLM's, with videos: contents are lists of parts. */
    {"smolvlm", "{{ '<|im_start|>' }}"
                "{% for message in messages %}"
                "{{ message['role'] | capitalize }}{{ ':' if message['content'][0]['type'] == 'image' else ': ' }}"
                "{% for part in message['content'] %}"
                "{% if part['type'] == 'text' %}{{ part['text'] }}{% elif part['type'] == 'image' %}{{ '<image>' }}{% "
                "elif part['type'] == 'video' %}{{ '<video>' }}{% endif %}"
                "{% endfor %}"
                "{{ '<end_of_utterance>\\n' }}"
                "{% endfor %}"
                "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"},
    /* PaliGemma's processor, which has no template: contents are lists of parts. */
    {"paligemma", "{% for message in messages %}"
                  "{% if message['role'] == 'assistant' %}{% generation %}"
                  "{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{{ eos_token }}{% endgeneration %}"
                  "{% else %}"
                  "{% for part in message['content'] %}"
                  "{% if part['type'] == 'image' %}{{ '<image>' }}{% elif part['type'] == 'text' %}"
                  "{{ part['text'] | trim }}{% endif %}"
                  "{% endfor %}{{ '\n' }}"
                  "{% endif %}"
                  "{% endfor %}"},
    {"vicuna_v1", "{% for message in messages %}"
                  "{% if message['role'] == 'system' %}"
                  "{{ message['content'] + ' ' }}"
                  "{% elif message['role'] == 'assistant' %}"
                  "{{ 'ASSISTANT:' }}{% generation %}{{ ' ' + message['content'] + eos_token }}{% endgeneration %}"
                  "{% else %}"
                  "{{ 'USER: ' + message['content'] + ' ' }}"
                  "{% endif %}"
                  "{% endfor %}"
                  "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"},
};

static int read_jinja(struct template **out, const char *path, struct error *e)
{
    char *bytes;
    size_t n;
    if (file_read(path, TEMPLATE_BYTES, &bytes, &n, e)) return e->code;
    const int rc = template_read(out, bytes, n, path, e);
    mem_free(bytes);
    return rc;
}

/* Returns the template of a list that has this name, or NULL. */
static const struct value *find_named(const struct value *list, const char *name)
{
    for (uint32_t i = 0; i < list->count; i++) {
        const struct value *found = value_get(list->items[i], "name");
        if (found && found->kind == VALUE_STRING && !strcmp(found->text, name))
            return value_get(list->items[i], "template");
    }
    return NULL;
}

/* Reads the template of a configuration's file. *out stays NULL where the file has no template, or
 * none of this name. */
static int read_config(struct template **out, const char *path, const char *name, struct error *e)
{
    struct bump memory = {0};
    struct value *root = NULL;
    int rc = json_read_file(path, CONFIG_BYTES, &memory, &root, e);
    const struct value *found = rc ? NULL : value_get(root, "chat_template");
    if (found && found->kind == VALUE_LIST) found = find_named(found, name);
    else if (found && strcmp(name, "default")) found = NULL;
    if (found && found->kind != VALUE_NULL) {
        const char *text;
        rc = value_as_string(found, "chat_template", &text, e);
        if (rc) error_prepend(e, "%s", path);
        else rc = template_read(out, text, strlen(text), path, e);
    }
    bump_free(&memory);
    return rc;
}

static bool path_of(char *out, size_t room, const char *folder, const char *name, const char *ending)
{
    return (size_t)snprintf(out, room, "%s/%s%s", folder, name, ending) < room && file_exists(out);
}

/* Tries the files in the order of transformers. */
static int read_folder(struct template **out, const char *folder, const char *name, struct error *e)
{
    static const char *const configs[] = {"chat_template.json", "tokenizer_config.json"};
    char path[4096], more[300];
    if (!strcmp(name, "default") && path_of(path, sizeof path, folder, "chat_template", ".jinja"))
        return read_jinja(out, path, e);
    if ((size_t)snprintf(more, sizeof more, "additional_chat_templates/%s", name) < sizeof more && !strchr(name, '/') &&
        path_of(path, sizeof path, folder, more, ".jinja"))
        return read_jinja(out, path, e);
    for (size_t i = 0; i < COUNT(configs); i++) {
        if (!path_of(path, sizeof path, folder, configs[i], "")) continue;
        if (read_config(out, path, name, e)) return e->code;
        if (*out) return PL_OK;
    }
    if (strcmp(name, "default")) return error_set(e, PL_USAGE, "%s: no chat template named \"%s\"", folder, name);
    return error_set(e, PL_USAGE,
                     "%s has no chat template: no chat_template.jinja, no chat_template.json, and no \"chat_template\" "
                     "in tokenizer_config.json. "
                     "Name a file with data.template: FILE, or a built-in one with data.template: chatml (ChatML), "
                     "mistral_instruct (LLaVA-Med), vicuna_v1 (LLaVA 1.5), smolvlm (SmolVLM) or paligemma (PaliGemma)",
                     folder);
}

int template_open(struct template **out, const char *folder, const char *file, const char *name, struct error *e)
{
    *out = NULL;
    for (size_t i = 0; file && i < COUNT(built_in); i++)
        if (!strcmp(file, built_in[i].name))
            return template_read(out, built_in[i].source, strlen(built_in[i].source), built_in[i].name, e);
    if (!file || (folder && !strcmp(file, "model"))) return read_folder(out, folder, name ? name : "default", e);
    if (strstr(file, "{%") || strstr(file, "{{")) return template_read(out, file, strlen(file), "the template", e);
    if (!path_has_ending(file, ".json")) return read_jinja(out, file, e);
    int rc = read_config(out, file, name ? name : "default", e);
    if (!rc && !*out)
        rc = error_set(e, PL_USAGE, "%s has no \"chat_template\"%s%s", file, name ? " named " : "", name ? name : "");
    return rc;
}
