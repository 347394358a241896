/*
 * chat_folder.h: for tests of conversations with images: a model folder with all that tokenizing
 * needs, and files of lines of JSON.
 */
#pragma once

#include "batch/model_images.h"
#include "data/text/records.h"
#include "data/text/tokenize.h"
#include "io/file.h"
#include "io/json.h"

struct folder {
    struct model model;
    struct tokenizer *tokenizer;
    struct template *template;
    struct image_source images;
    struct tokenize_options options;
};

/* `media`: the folder of images and videos; `template`: one that is built in; NULL: the
 * folder's. */
static inline void folder_open_with(struct folder *f, const char *path, const char *media, const char *template)
{
    struct error e = {0};
    memset(f, 0, sizeof *f);
    int rc = model_open(&f->model, path, &e);
    if (!rc) rc = tokenizer_open(&f->tokenizer, path, &e);
    if (!rc) rc = template_open(&f->template, path, template, NULL, &e);
    if (!rc)
        rc = model_images_open(&f->images, &f->model, f->tokenizer, f->template,
                               &(struct image_scope){.where = media, .anywhere = true, .room = RECORD_MOST}, &e);
    if (rc) fail_msg("%s: %s", path, e.text);
    f->options = (struct tokenize_options){
        .tokenizer = f->tokenizer, .template = f->template, .images = &f->images, .room = RECORD_MOST};
}

static inline void folder_open(struct folder *f, const char *path, const char *media)
{
    folder_open_with(f, path, media, NULL);
}

static inline void close_folder(struct folder *f)
{
    image_source_close(&f->images);
    template_close(f->template);
    tokenizer_close(f->tokenizer);
    model_close(&f->model);
}

/* The lines of a file as values. */
static inline struct value *read_lines(const char *path, struct bump *b)
{
    char *text, *rest = NULL;
    size_t n;
    struct error e;
    struct value *list = value_new(b, VALUE_LIST);
    if (file_read(path, 1 << 20, &text, &n, &e)) fail_msg("%s", e.text);
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        struct value *v;
        if (json_parse(line, strlen(line), b, &v, &e)) fail_msg("%s", e.text);
        value_append(b, list, v);
    }
    mem_free(text);
    return list;
}
