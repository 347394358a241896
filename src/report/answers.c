/*
 * answers.c: see html.h.
 */
#include "report/html.h"

#include <math.h>
#include <sys/stat.h>

#include "base/coding.h"
#include "data/images/image.h"
#include "data/images/image_files.h"
#include "batch/text_source.h"
#include "io/file.h"
#include "io/json.h"
#include "io/png.h"
#include "report/draw.h"
#include "report/page.h"

enum { SHOWN = 24, FILE_LIMIT = 64 << 20, IMAGE_ROOM = 32 << 20, SIDE = 240 };

/* --- files ------------------------------------------------------------------------------------ */

/* Returns the largest N of DIR/answers/step-N.jsonl; 0: there is none. */
static uint64_t last_step(const char *folder)
{
    struct names names = {0};
    struct error ignored;
    uint64_t last = 0;
    if (dir_list(folder, &names, &ignored)) return 0;
    for (uint32_t i = 0; i < names.n; i++) {
        unsigned long long step;
        if (sscanf(names.at[i], "step-%llu.jsonl", &step) == 1 && step > last) last = step;
    }
    names_free(&names);
    return last;
}

/* Opens the files in which the run's held-out images are; NULL: they are not there any more. A
 * page is given to others, so it shows no file outside of data.images, also where the run may
 * read them. */
static struct image_files *open_images(const char *dir)
{
    char path[RUN_PATH];
    struct config c;
    struct error ignored;
    struct text_scope x = {0};
    struct image_files *files = NULL;
    config_init(&c);
    if (run_file(dir, "config.yaml", path, &ignored) && !config_read(&c, path, &ignored) &&
        !text_scope_open(&x, &c, FEED_VALIDATION, &ignored)) {
        x.scope.anywhere = false;
        if (image_files_open(&files, &x.scope, &ignored)) files = NULL;
    }
    text_scope_close(&x);
    config_free(&c);
    return files;
}

/* --- an image --------------------------------------------------------------------------------- */

/* Appends the image, at most SIDE pixels high and wide, as an element of the page. */
static int put_pixels(struct text *out, const struct image *image, struct error *e)
{
    const struct canvas whole = {image->width, image->height, image->rgb};
    const double scale = fmin(1, (double)SIDE / (double)(image->width > image->height ? image->width : image->height));
    const uint32_t w = (uint32_t)fmax(1, (double)image->width * scale),
                   h = (uint32_t)fmax(1, (double)image->height * scale);
    struct canvas small = canvas_new(w, h, DRAW_WHITE);
    struct text png = {0};
    draw_fit(&small, 0, 0, w, h, &whole);
    int rc = png_encode(&png, PNG_RGB, w, h, small.rgb, (size_t)w * 3, e);
    if (!rc) {
        text_printf(out, "<img alt='' src='data:image/png;base64,");
        base64_encode(out, png.at, png.n);
        text_printf(out, "'>");
    }
    text_free(&png);
    canvas_free(&small);
    return rc;
}

/* Reads the slice in the middle of a volume, of a series of the volume in its middle. The caller
 * frees image->rgb. */
static int read_slice(struct image_files *files, const char *reference, struct image *image, struct error *e)
{
    const struct pixel_range range = {.kind = RANGE_AUTO};
    struct volume v;
    TRY(image_files_volume(files, reference, &(struct volume_options){0}, &v, e));
    const struct volume_channels shown = {.at = {&v}, .modality = {v.modalities / 2}};
    const size_t room = volume_rgb_room(&shown);
    *image = (struct image){.width = v.w, .height = v.h, .rgb = mem_alloc(room)};
    int rc = volume_set_window(&v, shown.modality[0], &range, e);
    if (!rc) rc = volume_rgb(&shown, &range, v.slices / 2, image->rgb, room, e);
    if (rc) mem_free(image->rgb);
    volume_close(&v);
    return rc;
}

/* Reads an image, in the room of its file. */
static int read_image(struct image_files *files, const char *reference, void *room, struct image *image,
                      struct error *e)
{
    size_t n = 0;
    if (media_is_volume(reference)) return read_slice(files, reference, image, e);
    TRY(image_files_read(files, reference, room, IMAGE_ROOM, &n, e));
    return image_decode(image, room, n, &(struct image_options){.on_white = true}, NULL, 0, e);
}

static void put_image(struct text *out, struct image_files *files, const char *reference, void *room)
{
    struct image image;
    struct error ignored;
    int rc = !files || media_is_video(reference) || read_image(files, reference, room, &image, &ignored);
    if (!rc) {
        rc = put_pixels(out, &image, &ignored);
        mem_free(image.rgb);
    }
    if (!rc) return;
    text_printf(out, "<code>");
    html_escape(out, strncmp(reference, "data:", 5) ? reference : "data: URL");
    text_printf(out, "</code> ");
}

/* --- an answer -------------------------------------------------------------------------------- */

static const char *text_of(const struct value *map, const char *key)
{
    const struct value *v = value_get(map, key);
    return v && v->kind == VALUE_STRING ? v->text : "";
}

static void put_line(struct text *out, const char *label, const char *text)
{
    text_printf(out, "<dt>");
    html_escape(out, label);
    text_printf(out, "</dt><dd>");
    html_escape(out, text);
    text_printf(out, "</dd>");
}

/* Writes the question: a text, or messages, of which what the user says is shown; parts of a
 * message that are images are not text. */
static void put_question(struct text *out, const struct value *prompt)
{
    if (prompt && prompt->kind == VALUE_STRING) put_line(out, "prompt", prompt->text);
    for (uint32_t i = 0; prompt && prompt->kind == VALUE_LIST && i < prompt->count; i++) {
        const struct value *message = value_at(prompt, i), *content = value_get(message, "content");
        const char *role = text_of(message, "role");
        if (content && content->kind == VALUE_STRING)
            put_line(out, strcmp(role, "user") ? role : "question", content->text);
        for (uint32_t k = 0; content && content->kind == VALUE_LIST && k < content->count; k++)
            if (*text_of(value_at(content, k), "text"))
                put_line(out, strcmp(role, "user") ? role : "question", text_of(value_at(content, k), "text"));
    }
}

static void put_answer(struct text *out, const struct value *line, struct image_files *files, void *room)
{
    const struct value *images = value_get(line, "images");
    const bool right = !strcmp(text_of(line, "answer"), text_of(line, "reference"));
    text_printf(out, "<div class='answer'>");
    for (uint32_t i = 0; images && images->kind == VALUE_LIST && i < images->count; i++)
        if (value_at(images, i)->kind == VALUE_STRING) put_image(out, files, value_at(images, i)->text, room);
    text_printf(out, "<dl>");
    put_question(out, value_get(line, "prompt"));
    put_line(out, "label", text_of(line, "reference"));
    put_line(out, right ? "answer, equal to the label" : "answer", text_of(line, "answer"));
    text_printf(out, "</dl></div>\n");
}

void answers_section(struct text *out, const char *dir)
{
    char path[RUN_PATH], name[64], *bytes;
    size_t n;
    struct error ignored;
    if (!run_folder(dir, "answers", path)) return;
    const uint64_t step = last_step(path);
    snprintf(name, sizeof name, "answers/step-%llu.jsonl", (unsigned long long)step);
    if (!step || !run_file(dir, name, path, &ignored) || file_read(path, FILE_LIMIT, &bytes, &n, &ignored)) return;
    struct image_files *files = open_images(dir);
    void *room = mem_alloc(IMAGE_ROOM);
    text_printf(out, "<h2>Answers after step %llu</h2>\n<div class='row'>\n", (unsigned long long)step);
    const char *at = bytes, *end;
    for (uint32_t shown = 0; shown < SHOWN && (end = strchr(at, '\n')); shown++, at = end + 1) {
        struct bump b = {0};
        struct value *line;
        if (!json_parse(at, (size_t)(end - at), &b, &line, &ignored)) put_answer(out, line, files, room);
        bump_free(&b);
    }
    text_printf(out, "</div>\n");
    if (files) image_files_close(files);
    mem_free(room);
    mem_free(bytes);
}

/* --- files of a run --------------------------------------------------------------------------- */

/* Returns the mode of DIR/NAME; 0: `e` says why it is not used. */
static mode_t mode_of(const char *dir, const char *name, char path[RUN_PATH], struct error *e)
{
    struct stat s = {0};
    const size_t n = strlen(dir) + 1;
    if (snprintf(path, RUN_PATH, "%s/%s", dir, name) >= RUN_PATH)
        return error_set(e, PL_USAGE, "%.200s...: the path is too long", dir), 0;
    for (char *slash = strchr(path + n, '/');; slash = strchr(slash + 1, '/')) {
        if (slash) *slash = '\0';
        if (lstat(path, &s)) return file_error(path, "read it", e), 0;
        if (S_ISLNK(s.st_mode))
            return error_set(e, PL_USAGE, "%s: it is a link, and may lead out of the run's folder", path), 0;
        if (!slash) return s.st_mode;
        *slash = '/';
    }
}

bool run_file(const char *dir, const char *name, char path[RUN_PATH], struct error *e)
{
    const mode_t mode = mode_of(dir, name, path, e);
    return S_ISREG(mode) || (mode && (error_set(e, PL_USAGE, "%s: it is no regular file", path), false));
}

bool run_folder(const char *dir, const char *name, char path[RUN_PATH])
{
    struct error ignored;
    return S_ISDIR(mode_of(dir, name, path, &ignored));
}
