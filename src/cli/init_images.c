/*
 * init_images.c: where the images of conversations are, for `plimsoll init` (see init_text.h): the
 * first folder, of the usual ones around the data file, in which the first images are.
 */
#include <stdio.h>
#include <string.h>

#include "cli/init_text.h"
#include "data/text/conversation.h"
#include "data/images/image_files.h"
#include "data/text/records.h"

enum { OBJECTS_READ = 64, IMAGES_TRIED = 8 };

/* The first references to images in a file. */
static void list_images(const char *path, struct names *out)
{
    struct records r;
    struct record x;
    struct error ignored;
    bool more = true;
    if (records_open(&r, path, RECORD_MOST, &ignored)) return;
    for (int i = 0; i < OBJECTS_READ && out->n < IMAGES_TRIED && !records_next(&r, &x, &more, &ignored) && more; i++) {
        struct bump b = {0};
        struct value *sample;
        struct conversation c;
        if (!conversation_parse(x.text, x.n, RECORD_MOST, &b, &sample, &ignored) &&
            !conversation_read(sample, NULL, "", &b, &c, &ignored))
            for (uint32_t k = 0; k < c.media->count && out->n < IMAGES_TRIED; k++)
                vec_push(out, mem_string(c.media->items[k]->text));
        bump_free(&b);
    }
    records_close(&r);
}

/* Whether most of the images are below a folder. */
static bool has_images(const char *folder, const struct names *images)
{
    struct image_files *files;
    struct error ignored;
    uint64_t bytes;
    uint32_t found = 0;
    if (image_files_open(&files, &(struct image_scope){.where = folder}, &ignored)) return false;
    for (uint32_t i = 0; i < images->n; i++) found += !image_files_find(files, images->at[i], &bytes, &ignored);
    image_files_close(files);
    return 2 * found > images->n;
}

/* The folder that has all images, whose paths are absolute; NULL: some are not. */
static char *common_folder(const struct names *images, struct bump *memory)
{
    char *out = bump_string(memory, images->at[0]);
    for (uint32_t i = 0; i < images->n; i++) {
        size_t n = 0, slash = 0;
        for (; out[n] && out[n] == images->at[i][n]; n++)
            if (out[n] == '/') slash = n;
        if (images->at[i][0] != '/') return NULL;
        if (out[n] || !i || images->at[i][n] != '/') out[slash] = 0;
    }
    return *out ? out : bump_string(memory, "/");
}

const char *init_find_images(const char *path, struct bump *memory)
{
    static const char *const places[] = {"/images", "/image", "/imgs", "/..", "/../images"};
    struct names images = {0};
    struct error ignored;
    char folder[4096], *found = NULL;
    bool here = false;
    list_images(path, &images);
    if (images.n && !path_dir(path, folder, sizeof folder, &ignored)) {
        here = has_images(folder, &images);
        found = here ? folder : common_folder(&images, memory);
        if (!here && found && !has_images(found, &images)) found = NULL;
        for (size_t i = 0; i < COUNT(places) && !found; i++) {
            char *place = bump_format(memory, "%s%s", folder, places[i]);
            if (has_images(place, &images)) found = place;
        }
        if (!found)
            log_warn("%s is not found, nor are most of the first images, in %s or the usual folders beside it: give "
                     "their folder or tar as --images",
                     images.at[0], folder);
    }
    names_free(&images);
    return here ? NULL : found;
}
